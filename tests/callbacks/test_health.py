"""What is said of a run while it trains: stalls, uneven time, errors, the axis of its forecast."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scalerl.callbacks.health import Outlooks, RunHealth
from scalerl.forecast.logs import read
from scalerl.forecast.report.alarms import Alarm
from scalerl.forecast.report.analyse import analyse_fit
from scalerl.forecast.report.options import FitOptions
from scalerl.recipe.load import load_recipe
from scalerl.runfolder import store
from scalerl.training.run.clock import Clock, StallDetector
from scalerl.training.run.rows import Rows

END = {"gpu_hours": 10.0, "flops": 1e15, "tokens": 1e6, "step": 100}


def evaluations(hours: list[float]) -> list[dict[str, Any]]:
    return [
        {
            "step": place,
            "set": "main",
            "gpu_hours": spent,
            "flops": 1e12 * place,
            "tokens": 100 * place,
            "reward": 0.2 + 0.6 * place**2 / (place**2 + 60),
            "num_samples": 1000,
        }
        for place, spent in enumerate(hours)
    ]


EVEN = evaluations([0.1 * place for place in range(21)])
BUSY = evaluations([0.1 * place for place in range(11)] + [1.0 + 0.8 * place for place in range(1, 11)])


class Reported:
    """The health of a run on a CPU, and what it has reported."""

    def __init__(
        self,
        folder: Path,
        errors: Mapping[tuple[str, str], str] | None = None,
        num_unrewarded: int = 0,
    ) -> None:
        self.now = 0.0
        self.clock = Clock(now=lambda: self.now, stalls=StallDetector())
        self.rows = Rows(folder)
        store.write_json(folder / store.RECIPE, {})
        store.write_env(folder, {"device": "cpu"})
        judge = SimpleNamespace(name="mine:grade")
        inputs = SimpleNamespace(eval_sets=[SimpleNamespace(judge=judge)])
        self.health = RunHealth(
            SimpleNamespace(
                rows=self.rows,
                clock=self.clock,
                device=SimpleNamespace(type="cpu"),
                budget=SimpleNamespace(at_end=END.get),
                recipe=load_recipe("tiny-cpu"),
                parts=SimpleNamespace(inputs=inputs, first_errors=errors or {}, num_unrewarded=num_unrewarded),
            )
        )

    def evaluated(self, *rows: dict[str, Any], samples: Sequence[dict[str, Any]] = ()) -> tuple[Outlooks, list[Alarm]]:
        for row in rows:
            self.rows.add_evaluation(row["step"], [row], samples)
        outlooks = self.health.outlooks(rows[-1:])
        return outlooks, self.health.alarms()


@pytest.mark.parametrize(("rows", "unit"), [(EVEN, "CPU-hours"), (BUSY, "FLOPs")])
def test_live_forecast_equals_fit_with_the_same_unit(tmp_path: Path, rows: list[dict[str, Any]], unit: str):
    outlooks, raised = Reported(tmp_path).evaluated(*rows)
    live, (offline,) = outlooks["main"], analyse_fit(read([tmp_path]), FitOptions()).curves
    assert live is not None
    assert live.unit == offline.unit == unit
    assert live.fit.params == offline.fit.params
    assert live.decision == offline.decision
    assert raised == []


def test_stalls_are_reported_once(tmp_path: Path):
    run = Reported(tmp_path)
    run.clock.start_training()
    for seconds in [0.5] * 8 + [69.0]:
        run.now += seconds
        run.clock.after_step({}, None)
    (stalled,) = run.evaluated(*BUSY[:-1])[1]
    assert (stalled.kind, stalled.value) == ("stalled", 68.5)
    assert run.evaluated(BUSY[-1])[1] == []


def test_each_exception_of_a_grader_is_reported_once(tmp_path: Path):
    errors = {("grader", "mine"): "KeyError: 3"}
    run = Reported(tmp_path, errors)
    assert [(alarm.kind, alarm.subject) for alarm in run.evaluated(EVEN[0])[1]] == [("grader_error", "mine")]
    assert run.evaluated(EVEN[1])[1] == []
    errors[("environment", "game")] = "it took more than 60 s (task.environment.step_s)"
    assert [(alarm.kind, alarm.subject) for alarm in run.evaluated(EVEN[2])[1]] == [("environment_error", "game")]


EMPTY = [{"step": step, "batch/effective": 0, "reward/correct_frac": 0.0} for step in range(1, 9)]


def test_grader_that_never_rewards_is_named_with_answers(tmp_path: Path):
    run = Reported(tmp_path, num_unrewarded=384)
    run.rows.metrics.extend(EMPTY)
    samples = [{"completion": f"<think></think>{place}", "answer": "7"} for place in range(4)]
    (alarm,) = run.evaluated(EVEN[0], samples=samples)[1]
    assert (alarm.kind, alarm.cause, alarm.subject, alarm.num_answers) == ("empty", "unrewarded", "mine:grade", 384)
    assert alarm.answers == (("<think></think>0", "7"), ("<think></think>1", "7"), ("<think></think>2", "7"))
    text = alarm.text
    assert all(part in text for part in ("mine:grade", "384", "'<think></think>2' for '7'"))


def test_grader_is_not_blamed_if_an_answer_was_rewarded(tmp_path: Path):
    run = Reported(tmp_path)
    run.rows.metrics.extend(EMPTY)
    (alarm,) = run.evaluated(EVEN[0])[1]
    assert (alarm.kind, alarm.cause) == ("empty", "all_wrong")
