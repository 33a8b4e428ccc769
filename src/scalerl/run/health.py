"""Report a run's health at each evaluation: forecasts of its curves, and alarms.

This is the only module of `run` that reads curves. Its imports from `report` are all that a run needs from the
predictive half.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from scalerl.report.alarms import Alarm, AlarmKind, AlarmNews, alarms
from scalerl.report.metrics import number_columns
from scalerl.report.outlook import outlooks_of, with_end
from scalerl.report.results import CurveResult
from scalerl.run.clock import Clock
from scalerl.run.hooks import Hook, RunEnd
from scalerl.run.rows import Rows
from scalerl.store import Row

ERRORS = {"grader": AlarmKind.GRADER_ERROR, "environment": AlarmKind.ENVIRONMENT_ERROR}
NUM_SHOWN, LONGEST_ANSWER = 3, 60
"""Number of answers shown with an alarm, and the number of last characters shown of each."""

Outlooks = Mapping[str, CurveResult | None]
"""The forecast of each evaluation set; None if there is none yet."""


class Health(Hook):
    """Reports each evaluation with its forecasts and the new alarms."""

    def __init__(
        self,
        rows: Rows,
        clock: Clock,
        report: Callable[[Sequence[Row], Outlooks, Sequence[Alarm]], None],
        *,
        at_end: Callable[[str], float | None] = lambda axis: None,
        errors: Callable[[], Mapping[tuple[str, str], str]] = dict,
        num_unrewarded: Callable[[], int] = int,
        graders: str = "",
        remedies: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    ) -> None:
        """`at_end` returns the compute at the end of the budget; for `errors` and `num_unrewarded` see Parts.

        `graders` has the names of the graders, `remedies` the settings that help against each kind of alarm.
        """
        self._rows, self._clock, self._report = rows, clock, report
        self._at_end, self._errors, self._remedies = at_end, errors, remedies
        self._num_unrewarded, self._graders = num_unrewarded, graders
        self._news = AlarmNews()
        self._num_reported, self._stalled_s = len(rows.evals), clock.row()["time/stalled_s"]
        self._known_errors: Mapping[tuple[str, str], str] = {}

    def after_step(self, done: Any, end: RunEnd | None) -> None:
        new = self._rows.evals[self._num_reported :]
        if not new:
            return
        self._num_reported += len(new)
        with self._clock.aside("evaluation"):
            # Read the folder as `scalerl fit` does: the reader chooses the axis, and knows the device.
            known = outlooks_of(self._rows.folder)
            ahead = {name: with_end(curve, self._at_end(curve.axis)) for name, curve in known.items()}
            outlooks = {row["set"]: ahead.get(row["set"]) for row in new}
            self._report(new, outlooks, self._alarms(outlooks))

    def _of_set(self, name: str) -> list[Row]:
        return [row for row in self._rows.evals if row["set"] == name]

    def _alarms(self, outlooks: Outlooks) -> list[Alarm]:
        """Return the alarms that are new since the last call."""
        metrics = self._rows.metrics
        raised = alarms(
            number_columns(metrics),
            curves=outlooks,
            evals={name: self._of_set(name) for name in outlooks},
            remedies=self._remedies,
        )
        present = [self._with_grader(alarm) for alarm in raised if alarm.ended is None]
        return [*self._news.update(present), *self._events()]

    def _with_grader(self, alarm: Alarm) -> Alarm:
        """Name the grader if no answer ever earned a reward: the grader may be at fault, not the problems."""
        num = self._num_unrewarded()
        if alarm.kind != AlarmKind.EMPTY or alarm.cause != "all_wrong" or not num:
            return alarm
        answers = tuple((row["completion"][-LONGEST_ANSWER:], row["answer"]) for row in self._rows.samples[:NUM_SHOWN])
        return replace(alarm, cause="unrewarded", subject=self._graders, num_answers=num, answers=answers)

    def _events(self) -> list[Alarm]:
        """Return events since the last call: the first error of each grader and environment, and stalls."""
        before, self._known_errors = self._known_errors, dict(self._errors())
        new = sorted(self._known_errors.items() - before.items())
        events = [Alarm(kind=ERRORS[source], subject=name, detail=error) for (source, name), error in new]
        stalled_s = self._clock.row()["time/stalled_s"] - self._stalled_s
        if stalled_s > 0:
            events.append(Alarm(kind=AlarmKind.STALLED, value=stalled_s))
            self._stalled_s += stalled_s
        return events
