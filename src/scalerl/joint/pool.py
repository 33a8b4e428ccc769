"""Arms of one study share what they know: each is fitted again with the prior that the others make."""

from collections.abc import Mapping, Sequence

import numpy as np

from scalerl.curves.fitted import Fit
from scalerl.curves.priors.pooled import can_be_pooled, with_prior
from scalerl.curves.priors.prior import PARAMS, Prior, coordinates
from scalerl.joint.population import Member, for_a_new_run, leave_one_out

LEAST_MEMBERS = 3  # fewer runs say nothing of how far runs differ
ANY_RUN = ("share", "exponent")  # what holds for runs on another axis of compute, or of another length


def member(name: str, curve: Fit) -> Member:
    """A fit's draws under the weak prior, on the axes of `Prior`."""
    own = curve.unpooled or curve
    assert own.draws is not None
    draws = coordinates(own.draws.params, own.bounds[1])
    return Member(name=name, draws=draws, log_scale=float(np.log(own.scale)))


def pool(fits: Mapping[str, Fit], earlier: Sequence[Member] = ()) -> dict[str, Fit]:
    """Every fit that can be, under the prior of the others and of `earlier` runs; the rest, and too few, as they are.

    The fits must be on one axis of compute, of one base model and one task.
    """
    names = [name for name, curve in fits.items() if can_be_pooled(curve)]
    if not names or len(names) + len(earlier) < LEAST_MEMBERS:
        return dict(fits)
    members = [*(member(name, fits[name]) for name in names), *earlier]
    priors = leave_one_out(members, PARAMS, len(names))
    pooled = {name: with_prior(fits[name], prior) for name, prior in zip(names, priors, strict=True)}
    return {name: pooled.get(name, curve) for name, curve in fits.items()}


def learn_prior(members: Sequence[Member]) -> Prior:
    """The prior that these runs make for one more of any length, on any axis."""
    return for_a_new_run(members, ANY_RUN)
