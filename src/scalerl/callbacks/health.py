"""The health of one of our runs while it trains: forecasts of its curves, and alarms, from the rows that it wrote.

An observer of a run (`scalerl.train(..., observer=...)`) asks for both when an evaluation is reported:

    class Watcher(RunObserver):
        def started(self, run):
            self.health = RunHealth(run)

        def evaluated(self, rows):
            outlooks = self.health.outlooks(rows)
            for alarm in self.health.alarms():
                print(alarm.text)
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from scalerl.callbacks.live_forecast import outlooks_of
from scalerl.forecast.report.alarms import Alarm, AlarmKind, AlarmNews, alarms, with_remedies
from scalerl.forecast.report.analyse import with_end
from scalerl.forecast.report.metrics import number_columns
from scalerl.forecast.report.results import CurveResult
from scalerl.recipe.recipe import remedies

NUM_SHOWN = 3
LONGEST_ANSWER = 60
"""Number of answers shown with an alarm, and the number of last characters shown of each."""

Outlooks = Mapping[str, CurveResult | None]
"""The forecast of each evaluation set; None if there is none yet."""

_ERRORS = {"grader": AlarmKind.GRADER_ERROR, "environment": AlarmKind.ENVIRONMENT_ERROR}


class RunHealth:
    """Forecasts of a run's curves, and the alarms that are new each time they are asked for."""

    def __init__(self, run: Any) -> None:
        """`run` is a `TrainingRun`, as an observer gets it when the run starts."""
        self._run = run
        self._news = AlarmNews()
        self._stalled_s = self._stalled_so_far()
        self._known_errors: Mapping[tuple[str, str], str] = {}

    def outlooks(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, CurveResult | None]:
        """Return the forecasts of the evaluation sets of these rows to the end of the budget."""
        known = outlooks_of(self._run.rows.evals, self._run.device.type)
        outlooks: dict[str, CurveResult | None] = {}
        for row in rows:
            curve = known.get(row["set"])
            outlooks[row["set"]] = None if curve is None else with_end(curve, self._run.budget.at_end(curve.axis))
        return outlooks

    def alarms(self) -> list[Alarm]:
        """Return the alarms that are new since the last call."""
        raised = alarms(number_columns(self._run.rows.metrics))
        lasting = [self._with_grader(alarm) for alarm in raised if alarm.ended is None]
        present = with_remedies(lasting, remedies(self._run.recipe))
        return [*self._news.update(present), *self._new_errors(), *self._new_stall()]

    def _with_grader(self, alarm: Alarm) -> Alarm:
        """Name the grader if no answer ever earned a reward: the grader may be at fault, not the problems."""
        num = self._run.parts.num_unrewarded
        if alarm.kind != AlarmKind.EMPTY or alarm.cause != "all_wrong" or not num:
            return alarm
        graders = dict.fromkeys(each.judge.name for each in self._run.parts.inputs.eval_sets)
        samples = self._run.rows.samples[:NUM_SHOWN]
        answers = tuple((row["completion"][-LONGEST_ANSWER:], row["answer"]) for row in samples)
        return replace(alarm, cause="unrewarded", subject=", ".join(graders), num_answers=num, answers=answers)

    def _new_errors(self) -> list[Alarm]:
        """Return the first error of each grader and environment since the last call."""
        before = self._known_errors
        self._known_errors = dict(self._run.parts.first_errors)
        new = sorted(self._known_errors.items() - before.items())
        return [Alarm(kind=_ERRORS[source], subject=name, detail=error) for (source, name), error in new]

    def _new_stall(self) -> list[Alarm]:
        """Return the time for which the run stood still since the last call."""
        before = self._stalled_s
        self._stalled_s = self._stalled_so_far()
        stalled_s = self._stalled_s - before
        return [Alarm(kind=AlarmKind.STALLED, value=stalled_s)] if stalled_s > 0 else []

    def _stalled_so_far(self) -> float:
        return self._run.clock.row()["time/stalled_s"]
