"""Every number that the model of a curve takes for granted, each with where it comes from.

Most are round numbers, chosen on simulated runs (`benchmarks/populations.py`). Two were not chosen on those alone.
Scores hardly change with the weights of the kinds; of those that scored alike, the ones were taken under which the
clean example of the README has a known ceiling, with scores of measured curves in view. `DIVERGENCE` was set by
measured curves. docs/results/data.md lists them. Compute is in units of the largest compute measured, rewards in units
of what is said.
"""

from dataclasses import dataclass

import numpy as np

# Kinds of curves, with how likely each is before anything is seen: about half are one rise.
KINDS = {"flat": 0.10, "rise": 0.55, "second": 0.05, "tail": 0.05, "late": 0.15, "fall": 0.10}

# The exponents of arXiv 2510.13786, Table 1 and its ablations, lie between 1.1 and 5.0.
LOG_EXPONENT = (np.log(2.0), 0.5)
EXPONENTS = (np.log(0.3), np.log(14.0))
# Exponents of power laws in arXiv 2509.25300 lie about 0.1, those of the paper's A.4 below 1.
LOG_POWER = (np.log(0.2), 1.2)
POWERS = (np.log(1e-3), np.log(14.0))
# People look at a run, or stop it, within a factor of about ten of where its curve bends.
LOG_MIDPOINT = (0.0, 1.5)
MIDPOINTS = (np.log(1e-5), np.log(100.0))

# The gain, as a share of what is possible: even in its logarithm, with half the weight at all that is possible. Most
# runs end well below everything right. A smaller gain counts as none.
LEAST_SHARE = 0.02
# Rewards without limits: what is possible, in units of the range that was seen ...
ROOM = 10.0
# ... and for a rise that has not begun, in units of the noise, which is then all that was seen.
LATE_ROOM = 60.0

# An early second rise (learning the format), a slow tail, and the compute before which nothing happens.
SECOND_PLACES = np.log([0.006, 0.02, 0.06, 0.18, 0.5])
SECOND_EXPONENT = np.log(1.6)
# What one of these early rises stands for: the distance to the next place, and the exponents that are likely.
SECOND_CELL = (1.1, 2.5 * LOG_EXPONENT[1])
TAIL_PLACES = np.log([0.4, 1.2, 4.0])
TAIL_EXPONENT = np.log(0.9)
LATE_PLACES = np.log([0.05, 0.12, 0.25, 0.45, 0.7, 1.4, 3.0, 7.0])
# How fast a fall happens, in units of what is left of the run: at once, by its end, or going on beyond it.
FALL_LENGTHS = (0.03, 0.5, 3.0)
MOST_FALL_PLACES = 60
# Size of a second rise, a tail or a fall: normal, cut off at 0, with this mean and deviation in units of the range that
# was seen. A tail that adds next to nothing is no tail. An early rise may be all that was seen so far.
EXTRAS = {"second": (0.5, 0.4), "tail": (0.25, 0.12), "fall": (0.0, 0.5)}

# Slow drift of one run's evaluations: variance in units of an evaluation's noise, length in evaluations, weight.
DRIFTS = (
    (0.0, 1.0, 0.46),
    *((0.3, length, 0.22 / 3) for length in (1.5, 6.0, 25.0)),
    *((1.0, length, 0.22 / 3) for length in (1.5, 6.0, 25.0)),
    *((4.0, length, 0.10 / 3) for length in (1.5, 6.0, 25.0)),
)
# Departure of the curve from all of these shapes: standard deviation in units of the range that was seen, weight;
# and over which factor of compute (as a logarithm) it changes.
MISFITS = ((0.0, 0.6), (0.015, 0.28), (0.05, 0.12))
MISFIT_LENGTH = 1.0
# How far a curve may leave its shape with each doubling beyond its last evaluation, as a share of its gain. From half
# of measured runs 80 % of the later evaluations lay in 90 % intervals without it, 84 % with 0.02 and 88 % with 0.04.
DIVERGENCE = 0.03
# Spread between runs of one recipe, as a share of what it has risen by: its logarithm is normal. The paper's three
# repeats have a standard deviation of about 0.01 at a gain of 0.2. It is tried at these sizes, in units of the range
# that was seen, and at none.
LOG_RUN_SPREAD = (np.log(0.04), 1.1)
RUN_SPREADS = (0.01, 0.03, 0.09, 0.27)

# How much the noise guessed from neighbouring evaluations, or known from counts, weighs: in evaluations.
NOISE_DF = 2.0
KNOWN_NOISE_DF = 12.0

# A rise that is smaller than so many of its own standard errors has not been seen.
NOTICED = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """What is believed of a sigmoid's parameters before its points are seen: location and scale of each logarithm.

    `df` is that of a Student-t (infinite: normal). `log_share` is the gain's share of what is possible; None stands for
    the weak prior of this module. `log_midpoint` is relative to `scale`, or to the largest compute where that is None.
    """

    log_exponent: tuple[float, float] = LOG_EXPONENT
    log_midpoint: tuple[float, float] = LOG_MIDPOINT
    log_share: tuple[float, float] | None = None
    df: float = np.inf
    scale: float | None = None
    sources: tuple[str, ...] = ()
    """Names of the runs that it was learnt from."""


WEAK = Prior()
