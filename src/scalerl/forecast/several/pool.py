"""Pool the arms of a study: refit each with a prior learned from the others."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from scalerl.forecast.curves.decide import smallest_change
from scalerl.forecast.curves.fit import Fit, refit
from scalerl.forecast.several.population import Member, can_be_pooled, learn_prior, member

LEAST_MEMBERS = 3  # fewer runs do not show how much runs differ


def pool(fits: Mapping[str, Fit], call: Callable[..., Iterable[Fit]] = map) -> dict[str, Fit]:
    """Refit each curve with a prior learned from the other fits; return all fits.

    A run does not inform its own prior, so nothing counts twice. Fits that cannot be pooled are returned unchanged, and
    so are all fits if there are fewer than LEAST_MEMBERS runs. The fits must have the same axis of compute, base model
    and task. `call` applies a function to every curve, here or in workers.
    """
    own = {name: member(name, curve) for name, curve in fits.items() if can_be_pooled(curve)}
    if len(own) < LEAST_MEMBERS:
        return dict(fits)
    # A worker is sent one fit, and of the others only what informs it.
    alone = {name: fits[name].alone or fits[name] for name in own}
    informed = call(partial(_informed, own), alone.items())
    return {**fits, **dict(zip(own, informed, strict=True))}


def _informed(own: Mapping[str, Member], named: tuple[str, Fit]) -> Fit:
    """Fit one curve again under the prior that all others make."""
    name, alone = named
    others = [each for other, each in own.items() if other != name]
    return refit(alone, pool=learn_prior(others, alone))


def siblings(fits: Mapping[str, Fit]) -> list[tuple[str, ...]]:
    """Return groups of curves with the same start, which inform each other by default.

    Two starts are the same if noise could explain their difference. The curves must have the same axis of compute and
    the same task.
    """
    known = sorted((start_of(curve), name) for name, curve in fits.items() if can_be_pooled(curve))
    groups: list[list[str]] = []
    for (start, name), (before, other) in zip(known, [*known[:1], *known], strict=False):
        is_near = start - before <= max(smallest_change(fits[name]), smallest_change(fits[other]))
        groups = [*groups[:-1], [*groups[-1], name]] if groups and is_near else [*groups, [name]]
    return [tuple(name for name in fits if name in group) for group in groups]


def start_of(curve: Fit) -> float:
    """Return the reward before training: the given one, else the fitted one."""
    return curve.params["start"] if curve.start is None else curve.start
