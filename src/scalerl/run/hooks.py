"""The loop of a training run, RL and SFT alike: after every step each hook does its part, in order.

    clock -> rows -> evaluations -> health -> sinks -> checkpoints

A hook is called before the first step too, so that a run is measured where it starts, and once more when the data is
exhausted. The last hook writes the checkpoint, so a run never ends without one.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """Why a run ended."""

    kind: Literal["budget", "data", "stopped", "paused"]
    """The budget is spent, the data is exhausted, the observer asked to stop, or the run is to pause here."""
    reason: str


class Hook(Protocol):
    """One concern of a run."""

    def after_step(self, done: Any, end: RunEnd | None) -> None:
        """Do what is due after a step.

        `done` is the step; None before the first one and after the last. `end` is why the run ends here; None if it
        continues.
        """

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs to know, by name, as JSON types."""
        return {}


def train(steps: Iterable[Any], hooks: Sequence[Hook], end: Callable[[], RunEnd | None]) -> RunEnd:
    """Take the steps and call the hooks after each, until `end` returns a reason or there are no more steps."""
    for done in itertools.chain([None], steps):
        if (reached := _call(hooks, done, end)) is not None:
            return reached
    reached = _call(hooks, None, lambda: end() or RunEnd(kind="data", reason="data exhausted"))
    assert reached is not None
    return reached


def state_of(hooks: Sequence[Hook]) -> dict[str, Any]:
    """Return the state of all hooks, for a checkpoint."""
    return {name: value for hook in hooks for name, value in hook.state().items()}


def _call(hooks: Sequence[Hook], done: Any, end: Callable[[], RunEnd | None]) -> RunEnd | None:
    """Call every hook; return what the last one, which saves, was told."""
    reached = None
    for hook in hooks:
        # Asked anew for each: the user may ask to stop during an evaluation.
        reached = end()
        hook.after_step(done, reached)
    return reached
