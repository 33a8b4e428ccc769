"""Every number that the model of a curve takes for granted, each with where it comes from."""

import numpy as np

# How likely each kind of curve is before anything is seen.
HYPOTHESES = {"flat": 0.15, "rise": 0.55, "second": 0.24, "fall": 0.06}

LOG_EXPONENT = (np.log(2.0), 0.5)
LOG_MIDPOINT = (0.0, 1.2)
EXPONENTS = (np.log(0.3), np.log(14.0))
MIDPOINTS = (np.log(1e-4), np.log(100.0))
LEAST_SHARE = 0.01
ROOM = 2.0

SECOND_PLACES = np.log([0.004, 0.015, 0.05, 0.16, 0.5, 2.0, 6.0])
SECOND_EXPONENT = np.log(1.8)
SECOND_SD = 0.5

FALL_SHARES = (0.25, 0.4, 0.55, 0.68, 0.79, 0.87, 0.93)
FALL_LENGTHS = (0.1, 1.0)

DRIFTS = [(0.0, 1.0, 0.5)] + [(a, length, 0.5 / 9) for a in (0.3, 1.0, 4.0) for length in (1.5, 6.0, 25.0)]
MISFITS = [(0.0, 0.6), (0.015, 0.25), (0.05, 0.15)]
MISFIT_LENGTH = 1.0
RUN_SPREADS = [(0.01, 0.25), (0.03, 0.35), (0.09, 0.25), (0.27, 0.15)]

KNOWN_NOISE_DF = 12.0
NOISE_DF = 2.0
NOTICED = 3.0
