"""What a run says about its own health at each evaluation: forecasts of its curves, and alarms."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scalerl.config import Recipe, remedies
from scalerl.report.alarms import Alarm, AlarmKind, AlarmNews, alarms
from scalerl.report.columns import number_columns
from scalerl.report.outlook import Axis, LiveForecast, preferred_axis
from scalerl.report.results import CurveResult
from scalerl.run.clock import Pace

Row = Mapping[str, Any]


class Health:
    """Collects, between evaluations, what a person should know."""

    def __init__(self, recipe: Recipe, *, trained_s: float) -> None:
        """`trained_s` is the training time of earlier attempts."""
        self._remedies = remedies(recipe)
        self._news = AlarmNews()
        self._pace = Pace(round_steps=recipe.pipeline.push_every if recipe.pipeline.drain else 1)
        self._trained_s = trained_s
        self._stalled_s = 0.0
        self._grader_errors: Mapping[str, str] = {}

    def stalled_s(self, trained_s: float) -> float:
        """Return how much of the last step was a stall, from the run's training time after it."""
        stalled_s = self._pace.stalled_s(trained_s - self._trained_s)
        self._trained_s = trained_s - stalled_s
        self._stalled_s += stalled_s
        return stalled_s

    def outlooks(
        self, evals: Sequence[Row], sets: Sequence[str], end_compute: Callable[[Axis], float | None]
    ) -> dict[str, CurveResult | None]:
        """Return the forecast of each evaluation set, None before there is one."""
        by_set = {name: [row for row in evals if row["set"] == name] for name in sets}
        axes: dict[str, Axis] = {name: preferred_axis(rows) for name, rows in by_set.items()}
        return {
            name: LiveForecast.from_rows(rows, end_compute(axes[name]), axis=axes[name]).outlook()
            for name, rows in by_set.items()
        }

    def alarms(
        self,
        metrics: Sequence[Row],
        evals: Sequence[Row],
        outlooks: Mapping[str, CurveResult | None],
        grader_errors: Mapping[str, str],
    ) -> list[Alarm]:
        """Return what is new since the last call."""
        by_set = {name: [row for row in evals if row["set"] == name] for name in outlooks}
        columns = number_columns(metrics)
        raised = alarms(columns, curves=outlooks, evals=by_set, spent=metrics, remedies=self._remedies)
        present = [alarm for alarm in raised if alarm.ended is None]
        return [*self._news.update(present), *self._events(grader_errors)]

    def _events(self, grader_errors: Mapping[str, str]) -> list[Alarm]:
        """Return what happened once: the first exception of each grader, and stalls."""
        new, self._grader_errors = grader_errors.items() - self._grader_errors.items(), dict(grader_errors)
        events = [Alarm(kind=AlarmKind.GRADER_ERROR, subject=name, detail=error) for name, error in sorted(new)]
        if self._stalled_s:
            events.append(Alarm(kind=AlarmKind.STALLED, value=self._stalled_s))
            self._stalled_s = 0.0
        return events
