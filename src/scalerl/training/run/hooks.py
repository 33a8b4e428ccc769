"""The loop of a training run, for RL and SFT: after each step every hook is called, in order.

    clock -> rows -> evaluations -> sinks -> checkpoints

Hooks are also called before the first step, so that a run is measured where it starts, and once more when the data is
exhausted. The last hook writes the checkpoint, so that a run never ends without one.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """Why a run ended."""

    kind: Literal["budget", "data", "stopped"]
    """The budget is spent, the data is exhausted, or the observer asked to stop."""
    reason: str


class Hook(Protocol):
    """One part of a run that acts between steps."""

    def after_step(self, done: Any, end: RunEnd | None) -> None:
        """Act after a step.

        `done` is the step, or None before the first step and after the last one. `end` says why the run ends here, or
        is None if the run continues.
        """

    def state(self) -> dict[str, Any]:
        """Return the state that a resumed run needs, by name, as JSON types."""
        return {}


def train(steps: Iterable[Any], hooks: Sequence[Hook], end: Callable[[], RunEnd | None]) -> RunEnd:
    """Take steps and call the hooks after each one, until `end` returns a reason or the steps are exhausted."""
    for done in itertools.chain([None], steps):
        if (reached := _call(hooks, done, end)) is not None:
            return reached
    reached = _call(hooks, None, lambda: end() or RunEnd(kind="data", reason="data exhausted"))
    assert reached is not None
    return reached


def state_of(hooks: Sequence[Hook]) -> dict[str, Any]:
    """Return the joined state of all hooks, for a checkpoint."""
    return {name: value for hook in hooks for name, value in hook.state().items()}


def _call(hooks: Sequence[Hook], done: Any, end: Callable[[], RunEnd | None]) -> RunEnd | None:
    """Call every hook; return the `end` that the last hook, which writes the checkpoint, received."""
    reached = None
    for hook in hooks:
        # Ask again for each hook: the user may ask to stop during an evaluation.
        reached = end()
        hook.after_step(done, reached)
    return reached
