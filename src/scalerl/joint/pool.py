"""Pool the arms of a study: fit each again with a prior that is learnt from the others."""

from collections.abc import Mapping, Sequence

import numpy as np

from scalerl.curves.fitted import Fit
from scalerl.curves.priors.pooled import can_be_pooled, with_prior
from scalerl.curves.priors.prior import PARAMS, Prior, coordinates
from scalerl.joint.population import Member, for_a_new_run, leave_one_out

LEAST_MEMBERS = 3  # fewer runs say nothing of how far runs differ
ANY_RUN = ("share", "exponent")  # what holds for runs on another axis of compute, or of another length


def member(name: str, curve: Fit) -> Member:
    """Return a fit's draws under the weak prior, on the axes of `Prior`."""
    own = curve.unpooled or curve
    assert own.draws is not None
    draws = coordinates(own.draws.params, own.bounds[1])
    return Member(name=name, draws=draws, log_scale=float(np.log(own.scale)))


def pool(fits: Mapping[str, Fit], earlier: Sequence[Member] = ()) -> dict[str, Fit]:
    """Fit each curve again under the prior that the other fits and the `earlier` runs make; return all fits.

    Fits that cannot be pooled are returned unchanged, and so are all if there are fewer than LEAST_MEMBERS runs. The
    fits must have the same axis of compute, base model and task.
    """
    names = [name for name, curve in fits.items() if can_be_pooled(curve)]
    if not names or len(names) + len(earlier) < LEAST_MEMBERS:
        return dict(fits)
    members = [*(member(name, fits[name]) for name in names), *earlier]
    priors = leave_one_out(members, PARAMS, len(names))
    pooled = {name: with_prior(fits[name], prior) for name, prior in zip(names, priors, strict=True)}
    return {name: pooled.get(name, curve) for name, curve in fits.items()}


def learn_prior(members: Sequence[Member]) -> Prior:
    """Return the prior for one more run of any length, on any axis of compute: over share and exponent only."""
    return for_a_new_run(members, ANY_RUN)
