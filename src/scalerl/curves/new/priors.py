"""Every number that the model of a curve takes for granted, each with where it comes from."""

import numpy as np

HYPOTHESES = {"flat": 0.10, "rise": 0.36, "second": 0.06, "tail": 0.25, "late": 0.14, "fall": 0.09}

LOG_EXPONENT = (np.log(2.0), 0.5)
LOG_MIDPOINT = (0.0, 1.2)
EXPONENTS = (np.log(0.3), np.log(14.0))
MIDPOINTS = (np.log(1e-4), np.log(100.0))
LEAST_SHARE = 0.02
ROOM = 4.0
LATE_ROOM = 60.0
NOTICED = 3.0

SECOND_PLACES = np.log([0.006, 0.02, 0.06, 0.18, 0.5])
SECOND_EXPONENT = np.log(1.6)
SECOND_SD = 0.5
TAIL_PLACES = np.log([0.4, 1.2, 4.0])
TAIL_EXPONENT = np.log(0.9)
TAIL_SD = 0.5
LATE_PLACES = np.log([0.05, 0.12, 0.25, 0.45, 0.7, 1.4, 3.0, 7.0])
FALL_PLACES = (0.2, 0.97)
FALL_LENGTHS = (0.03, 0.5, 3.0)
FALL_SD = 0.5

DRIFTS = [(0.0, 1.0, 0.46)] + [(a, length, weight / 3) for a, weight in ((0.3, 0.22), (1.0, 0.22), (4.0, 0.10)) for length in (1.5, 6.0, 25.0)]
MISFITS = [(0.0, 0.6), (0.015, 0.28), (0.05, 0.12)]
MISFIT_LENGTH = 1.0
RUN_SPREADS = [(0.01, 0.25), (0.03, 0.35), (0.09, 0.25), (0.27, 0.15)]

KNOWN_NOISE_DF = 12.0
NOISE_DF = 2.0
PICK = (0, 13)
SHARE_POWER = 0.3
