"""A population of runs: for each parameter a Student t of unknown centre and width, learnt from the runs themselves.

Every run j has draws from its own posterior under the weak prior. On a grid of centres and widths its message about one
parameter is the average of t(draw; centre, width) over draws that are weighted by the current priors of the run's other
parameters. The product of all messages except run i's own, times the prior of centre and width, is the posterior of the
population given the other runs. The t density averaged over that posterior is the prior of run i. This is belief
propagation with the run left out, so that no run's data count twice. Every density is mixed with a share of the weak
prior, so that a run that differs from the others is not pulled towards them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scalerl.curves.forms import Array
from scalerl.curves.priors.prior import Density, Prior, weak_log_density

NUM_BINS = 144
NUM_WIDTHS = 11
DEGREES = 2.0  # of freedom of the Student t
STRANGERS = 0.2  # share of runs that have nothing to do with the others
SWEEPS = 4
LEAST_WIDTH, LARGEST_WIDTH = 0.01, 1.5
# Widths are half-Cauchy around these: what parameters of related runs usually differ by, on the axes of `Prior`.
TYPICAL_WIDTH = {"share": 0.3, "exponent": 0.3, "midpoint": 0.4}
MARGIN = 0.7  # beyond the outermost draws, on those axes


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Draws of one run on the axes of `Prior`; parameters that cannot be compared with other runs are left out."""

    name: str
    draws: Mapping[str, Array]
    log_scale: float
    """Log of the largest compute fitted."""
    is_posterior: bool = True
    """Whether the draws include the weak prior, which is then divided out; else they represent the likelihood alone."""


def leave_one_out(members: Sequence[Member], params: Sequence[str], num: int | None = None) -> list[Prior]:
    """Return, for each of the first `num` members (None: all), the prior learnt from all other members."""
    axes = _propagate(members, params)
    return [
        Prior(
            densities={axis.param: axis.density(axis.priors[index]) for axis in axes if index in axis.priors},
            sources=tuple(other.name for other in members if other is not member),
        )
        for index, member in enumerate(members[:num])
    ]


def for_a_new_run(members: Sequence[Member], params: Sequence[str]) -> Prior:
    """Return the prior for one more run, learnt from all members."""
    densities = {axis.param: axis.density(axis.new) for axis in _propagate(members, params)}
    return Prior(densities=densities, sources=tuple(member.name for member in members))


class _Axis:
    """The grid of one parameter, its density for every centre and width, and the current prior of each member."""

    def __init__(self, param: str, members: Mapping[int, Member]) -> None:
        """`members` are those that have this parameter, by their index in the list of all members."""
        self.param = param
        values = {index: member.draws[param] for index, member in members.items()}
        self.low = min(float(np.quantile(value, 0.005)) for value in values.values()) - MARGIN
        self.high = max(float(np.quantile(value, 0.995)) for value in values.values()) + MARGIN
        nodes = np.linspace(self.low, self.high, NUM_BINS)
        self.step = nodes[1] - nodes[0]
        least = max(LEAST_WIDTH, 0.6 * self.step)
        widths = np.geomspace(least, max(LARGEST_WIDTH, 2 * least), NUM_WIDTHS)
        weak = np.mean([np.exp(weak_log_density(param, nodes, own.log_scale)) for own in members.values()], axis=0)
        weak = np.maximum(weak / (weak.sum() * self.step), 1e-12)
        self._table = _densities(widths, self.step, weak)
        relative = widths / TYPICAL_WIDTH[param]
        log_width = np.log(relative) - np.log1p(relative**2)  # half-Cauchy, on nodes even in the logarithm
        self._log_prior = (log_width[:, None] + np.log(weak)).ravel()
        self.bins = {
            index: np.clip(np.rint((value - self.low) / self.step), 0, NUM_BINS - 1).astype(int)
            for index, value in values.items()
        }
        self.log_weak = {
            index: weak_log_density(param, values[index], member.log_scale) if member.is_posterior else 0.0
            for index, member in members.items()
        }
        self.new: Array = np.log(weak)
        """Log density of the parameter of one more run, on the bins."""
        self.priors = dict.fromkeys(members, self.new)
        """The same for each member, from the others."""

    def ratio(self, index: int) -> Array:
        """Return the log weight of each of a member's draws: its current prior relative to the weak prior."""
        return self.priors[index][self.bins[index]] - self.log_weak[index]

    def learn(self, log_weights: Mapping[int, Array]) -> None:
        """Update `new` and `priors` from the members' draws, weighted by `log_weights`."""
        masses = np.stack([self._mass(index, log_weight) for index, log_weight in log_weights.items()])
        messages = np.log(masses @ self._table.T)
        total = self._log_prior + messages.sum(axis=0)
        # The population as all members know it, and as all but one do.
        log_mass = np.concatenate([total[None], total - messages])
        mass = np.exp(log_mass - log_mass.max(axis=1, keepdims=True))
        predictive = np.log(mass @ self._table / mass.sum(axis=1, keepdims=True))
        self.new, self.priors = predictive[0], dict(zip(log_weights, predictive[1:], strict=True))

    def _mass(self, index: int, log_weight: Array) -> Array:
        """Return the share of a member's weighted draws in each bin."""
        mass = np.bincount(self.bins[index], weights=np.exp(log_weight - log_weight.max()), minlength=NUM_BINS)
        return mass / mass.sum()

    def density(self, log_density: Array) -> Density:
        return Density(low=self.low, high=self.high, log_density=log_density)


def _densities(widths: Array, step: float, weak: Array) -> Array:
    """Return the density on the bins (last axis) for each width and centre (first axis; the centre varies fastest)."""
    # Student t at all differences of two bins, for each width.
    apart = np.arange(1 - NUM_BINS, NUM_BINS) * step
    t = (1 + (apart / widths[:, None]) ** 2 / DEGREES) ** (-0.5 * (DEGREES + 1))
    t /= t.sum(axis=1, keepdims=True) * step
    place = np.arange(NUM_BINS)
    shifted = t[:, place[None, :] - place[:, None] + NUM_BINS - 1]
    return ((1 - STRANGERS) * shifted + STRANGERS * weak).reshape(-1, NUM_BINS)


def _propagate(members: Sequence[Member], params: Sequence[str]) -> list[_Axis]:
    """Run SWEEPS rounds of belief propagation; return an axis for each parameter that at least one member has."""
    having = {param: {i: own for i, own in enumerate(members) if param in own.draws} for param in params}
    axes = [_Axis(param, own) for param, own in having.items() if own]
    for _ in range(SWEEPS):
        log_weights: list[dict[int, Array]] = [{} for _ in axes]
        for index in range(len(members)):
            ratios = {place: axis.ratio(index) for place, axis in enumerate(axes) if index in axis.priors}
            for place in ratios:
                others = sum((ratio for other, ratio in ratios.items() if other != place), np.zeros(1))
                log_weight = np.broadcast_to(others - axes[place].log_weak[index], ratios[place].shape)
                log_weights[place][index] = log_weight
        for axis, axis_log_weights in zip(axes, log_weights, strict=True):
            axis.learn(axis_log_weights)
    return axes
