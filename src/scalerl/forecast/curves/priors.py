"""Every number that the model of a curve assumes, with its source and the data that it was set on.

Most are round numbers chosen on simulated runs (`benchmarks/populations.py`), with the published curves of arXiv
2510.13786 and other people's logs in view; scores hardly change with any of them. `DIVERGENCE` was set on measured
curves. docs/accuracy.md lists which; curves that are reserved for scoring chose nothing. Compute is in units of the
largest compute measured; each comment names the unit of rewards.

There is no prior of a skew: with one of 0.2 for its logarithm, published curves are forecast no better (median error
.0064 against .0063) and real logs neither (interval scores from a tenth, a quarter and half 1.14, .75, .53 with and
1.13, .75, .53 without it); with one of 1.0 published curves are worse than by least squares. Nor does a narrow one
win late take-offs back: after a cold start at half of a run whose ceiling is .60, 90 % intervals of the ceiling end at
.565 without a skew and at .573 with a logarithm of 0.3. In two of three runs it takes 1.2 to 2.4 to reach .60, and the
evidence for any of them differs by less than two e-folds.
"""

from dataclasses import dataclass

import numpy as np

# Probability that a curve is flat, and that a rising curve falls: 7 of 144 public logs do.
FLAT = 0.04
FALL = 0.05

# The exponents of arXiv 2510.13786, Table 1 and its ablations, lie between 1.1 and 5.0; a run that takes off late looks
# steeper.
LOG_EXPONENT = (np.log(2.0), 0.65)
# Exponents of power laws in arXiv 2509.25300 lie about 0.1, those of the paper's A.4 below 1.
LOG_POWER = (np.log(0.2), 1.2)
# People look at a run, or stop it, within a factor of about ten of its bend, and often before it. The unit is the
# compute seen, so the prior moves as a run goes on. In units of the first evaluation, which stay, forecasts from a
# tenth of other people's logs covered .83 to .85 instead of .90 (interval score 1.26 to 1.29 instead of 1.15), from a
# quarter and half .91 and .93 (.76 and .52 instead of .76 and .53): the look itself says something of the bend.
LOG_MIDPOINT = (0.4, 1.5)

# The gain is half-normal; its scale is one of these shares of the possible gain, with these weights. Together they
# are nearly even in the logarithm, and lean to large gains: a run that is worth training usually gains something.
GAIN_SHARES = ((0.025, 0.10), (0.06, 0.15), (0.14, 0.20), (0.32, 0.25), (0.7, 0.30))
# Unbounded rewards: the same in units of the observed range.
GAIN_SPANS = ((0.1, 0.10), (0.3, 0.15), (0.9, 0.25), (2.5, 0.25), (8.0, 0.25))
# Weight of these scales if other runs inform the gain.
SURPRISE = 0.1

# Speed of a fall, in units of the rest of the run when it begins: at once, or over that rest. With a slower one, a
# continuing rise and a fall that cancels it would look like a run that has levelled off.
FALL_LENGTHS = (0.03, 0.3)
# Size of a fall: half-normal, with this scale in units of the observed range.
FALL_SIZE = 0.5

# The noise of evaluations may be independent; or they drift slowly: variance in units of an evaluation's noise and
# weight, at each length in evaluations; or the curve departs from its shape by a share of the range that was seen.
# A strong drift is rare, and hardly anything else looks like one: without it a run that drifts looks like one that
# falls. With a larger weight it explains falls.
INDEPENDENT = 0.46
DRIFTS = ((0.5, 0.09), (2.5, 0.018), (12.0, 0.004))
DRIFT_LENGTHS = (1.5, 6.0, 25.0)
MISFITS = ((0.015, 0.28), (0.05, 0.12))
# The misfit changes over this factor of compute, as a logarithm, and is in proportion to how much of its range a run
# moves within that factor, but at least this much: a curve departs from its shape where it moves.
MISFIT_LENGTH = 1.0
LEAST_MOVEMENT = 0.3
# How far a curve may leave its shape with each doubling beyond its last evaluation, as a share of what the last one
# brought. Set on measured curves: from a tenth, a quarter and half of them 82, 85 and 88 % of the later evaluations lay
# in 90 % intervals with none of it, 84, 89 and 90 % with 0.2, 85, 92 and 93 % with 0.3.
DIVERGENCE = 0.25
# Spread between runs of one recipe, as a share of its gain: the logarithm is normal. The paper's three repeats have a
# standard deviation of about 0.01 at a gain of 0.2. It is tried at these sizes, in units of the range that was seen,
# and at none, which stands for all that are smaller.
LOG_RUN_SPREAD = (np.log(0.04), 1.1)
RUN_SPREADS = (0.01, 0.03, 0.09, 0.27)
NO_RUN_SPREAD = 0.04

# How much the noise guessed from neighbouring evaluations, or known from counts, weighs: in evaluations.
NOISE_DF = 2.0
KNOWN_NOISE_DF = 12.0

# A rise smaller than this many of its standard errors has not been seen.
NOTICED = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """Prior of a sigmoid's parameters: location and scale of each logarithm.

    Each is normal, or a Student-t with three degrees of freedom (`has_heavy_tails`). `log_share` is the gain as a
    share of the possible gain; None is the weak prior of this module. `log_midpoint` is relative to `scale`, or to the
    largest compute if that is None.
    """

    log_exponent: tuple[float, float] = LOG_EXPONENT
    log_midpoint: tuple[float, float] = LOG_MIDPOINT
    log_share: tuple[float, float] | None = None
    has_heavy_tails: bool = False
    scale: float | None = None
    sources: tuple[str, ...] = ()
    """Names of the runs that it was learned from."""


WEAK = Prior()
