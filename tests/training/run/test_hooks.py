"""The loop over hooks, and the budget that ends it."""

from collections.abc import Iterator
from typing import Any

from scalerl.recipe.parts import BudgetSettings
from scalerl.training.run.budget import Budget
from scalerl.training.run.hooks import Hook, RunEnd, state_of, train

STOPPED = RunEnd(kind="stopped", reason="asked to stop")


class Recorder(Hook):
    """Records the calls."""

    def __init__(self, name: str, calls: list[Any]) -> None:
        self.name, self.calls = name, calls

    def after_step(self, done: Any, end: RunEnd | None) -> None:
        self.calls.append((self.name, done, None if end is None else end.kind))

    def state(self) -> dict[str, Any]:
        return {self.name: len(self.calls)}


def test_hooks_are_called_in_order_before_between_and_after_steps():
    calls: list[Any] = []
    hooks = [Recorder("a", calls), Recorder("b", calls)]
    assert train(iter([1, 2]), hooks, lambda: None).kind == "data"
    assert calls == [
        *(("a", None, None), ("b", None, None)),
        *(("a", 1, None), ("b", 1, None)),
        *(("a", 2, None), ("b", 2, None)),
        *(("a", None, "data"), ("b", None, "data")),
    ]
    assert state_of([*hooks, Hook.__new__(type("Stateless", (Hook,), {}))]) == {"a": 8, "b": 8}


def test_no_step_is_taken_after_the_end():
    taken: list[int] = []

    def steps() -> Iterator[int]:
        for step in range(9):
            taken.append(step)
            yield step

    end = train(steps(), [Recorder("a", [])], lambda: STOPPED if len(taken) == 3 else None)
    assert (end, taken) == (STOPPED, [0, 1, 2])
    assert train(steps(), [Recorder("a", [])], lambda: STOPPED) == STOPPED
    assert taken == [0, 1, 2]


def test_stop_during_a_hook_reaches_the_later_hooks():
    calls: list[Any] = []
    asked: list[bool] = []

    class Evaluating(Recorder):
        def after_step(self, done: Any, end: RunEnd | None) -> None:
            super().after_step(done, end)
            asked.extend([True] * (done == 2))

    hooks = [Evaluating("evaluation", calls), Recorder("checkpoint", calls)]
    assert train(iter([1, 2, 3]), hooks, lambda: STOPPED if asked else None) == STOPPED
    assert calls[-2:] == [("evaluation", 2, None), ("checkpoint", 2, "stopped")]


def test_stop_after_the_last_hook_waits_for_the_next_step():
    """A run ends only when the hook that saves knows of it."""
    asked: list[bool] = []

    class Saving(Recorder):
        def after_step(self, done: Any, end: RunEnd | None) -> None:
            super().after_step(done, end)
            asked.append(done == 1)

    calls: list[Any] = []
    train(iter([1, 2, 3]), [Saving("checkpoint", calls)], lambda: STOPPED if any(asked) else None)
    assert calls == [("checkpoint", None, None), ("checkpoint", 1, None), ("checkpoint", 2, "stopped")]


def test_first_limit_that_is_reached_ends_a_run():
    spent = {"step": 5, "gpu_hours": 1.0, "flops": 3e12, "tokens": 10.0}
    budget = Budget(BudgetSettings(steps=10, gpu_hours=4.0, flops=1e13), lambda: spent, hours="CPU-hours")
    assert (budget.share, budget.end) == (0.5, None)
    assert (budget.at_end("gpu_hours"), budget.at_end("step")) == (2.0, 10)
    spent["gpu_hours"] = 4.0
    assert budget.end == RunEnd(kind="budget", reason="budget of 4 CPU-hours spent")
    assert Budget(BudgetSettings(steps=1), lambda: dict.fromkeys(spent, 0)).at_end("flops") is None
