"""How many slots a pipeline can use, and the lag to expect from those it has. Pure arithmetic, no torch.

Generation sets the pace: S slots finish completions at a constant rate, and N = groups x completions of them make a
step. So S / N steps pass while one completion of mean length is sampled, and a group whose longest completion is
`spread` times the mean takes spread x S / N steps from its first token to its last. That is the lag of its first
token; a token in the middle of a completion of mean length is S / N / 2 steps younger.

With enough slots the lag rule is the limit: (max_lag + 1) x N completions are untrained at all times, so every group is
trained max_lag steps after its submission, in the mean where a step does not wait for slow groups (waits_for), and its
completions are sampled over (max_lag + 1) / spread steps. The slowest groups then have SLOWEST times the mean lag, and
no bound: with heavy tails of lengths far more.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from scalerl.recipe.parts import PipelineSettings

SPREAD = 2.0
"""Assumed ratio of a group's longest completion to the mean one. Measured: 1.9 in tiny-cpu."""
SLOWEST = 2.0
"""Assumed ratio of the time that the slowest groups take to the mean time of a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedLag:
    """The expected lag with a number of slots."""

    slots: int
    batch: int
    """Completions per step."""
    max_lag: int
    mean: float
    """Expected `rollout/lag_mean`: over all sampled tokens."""
    largest: float
    """Expected `rollout/lag_max`: of the slowest groups' first tokens."""
    binds: bool
    """Whether max_lag limits the lag. If not, a larger max_lag changes nothing."""
    slots_to_bind: int
    """Fewest slots with which max_lag limits the lag."""
    of_mean: bool = False
    """Whether max_lag limits the mean lag of groups, and not the lag of every group."""


def full_slots(pipeline: PipelineSettings) -> int:
    """Return the most completions that the lag rule allows to be untrained at once; more slots would stay empty."""
    return (pipeline.max_lag + 1) * pipeline.batch


def expected_lag(slots: int, pipeline: PipelineSettings, *, spread: float = SPREAD) -> ExpectedLag:
    """Return the expected lag if generation, not the learner, sets the pace (always true on one device)."""
    max_lag = pipeline.max_lag
    batch = pipeline.batch
    batches = slots / batch
    of_mean = pipeline.waits_for == "batch" and not pipeline.drain and max_lag > 0
    if pipeline.drain:
        # All groups of a round are sampled by one version and trained at lags 0, 1, ... max_lag.
        mean = max_lag / 2
        largest = max_lag
        binds = True
        slots_to_bind = 1.0
    else:
        by_slots = (spread - 0.5) * batches
        by_rule = max_lag - ((max_lag + 1) / spread - 1) / 2
        mean = max(min(by_slots, by_rule, max_lag), 0.0)
        largest = SLOWEST * min(spread * batches, max_lag)
        if not of_mean:
            largest = min(largest, max_lag)
        # Without waiting for slow groups, only a full engine is limited.
        slots_to_bind = full_slots(pipeline) if of_mean else max_lag * batch / (SLOWEST * spread)
        binds = slots >= slots_to_bind
    return ExpectedLag(
        slots=slots,
        batch=batch,
        max_lag=max_lag,
        mean=mean,
        largest=largest,
        binds=binds,
        slots_to_bind=max(math.ceil(slots_to_bind), 1),
        of_mean=of_mean,
    )


def lag_words(lag: ExpectedLag, *, beside: bool = False) -> str:
    """Return the expected lag as text; `beside`: generators sample while the learner trains."""
    slots = f"{lag.slots:,} slots of all generators" if beside else f"{lag.slots:,} slots"
    text = f"{slots} for batches of {lag.batch:,}: expected lag {_steps(lag.mean, lag.largest)}"
    bounds = f"max_lag = {lag.max_lag} bounds {'the mean' if lag.of_mean else 'every group'}"
    if beside:
        return f"{text} if they set the pace; {bounds}, and is reached if the learner does"
    if not lag.binds:
        return f"{text}; max_lag = {lag.max_lag} cannot bind with fewer than about {lag.slots_to_bind:,} slots"
    return f"{text}; {bounds}"


def seen_words(lag: ExpectedLag, rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the expected lag and that of the steps in `rows` as text; "" without a step that has a lag."""
    seen = [row for row in rows if "rollout/lag_mean" in row]
    if not seen:
        return ""
    mean = sum(row["rollout/lag_mean"] for row in seen) / len(seen)
    largest = max(row["rollout/lag_max"] for row in seen)
    return f"Lag: {_steps(mean, largest)}; expected {_steps(lag.mean, lag.largest)}"


def _steps(mean: float, largest: float) -> str:
    return f"{mean:.2g} steps on average, {largest:.2g} for the oldest group"
