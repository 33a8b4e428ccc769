"""Report a run's health at each evaluation: forecasts of its curves, and alarms.

This is the only module of `run` that reads curves. Its imports from `report` are all that a run needs from the
predictive half.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scalerl.forecast.report.alarms import Alarm, AlarmKind, AlarmNews, alarms
from scalerl.forecast.report.metrics import number_columns
from scalerl.forecast.report.outlook import outlooks_of, with_end
from scalerl.forecast.report.results import CurveResult
from scalerl.runfolder.store import Row
from scalerl.training.run.clock import Clock
from scalerl.training.run.hooks import Hook, RunEnd
from scalerl.training.run.rows import Rows

ERRORS = {"grader": AlarmKind.GRADER_ERROR, "environment": AlarmKind.ENVIRONMENT_ERROR}
NUM_SHOWN, LONGEST_ANSWER = 3, 60
"""Number of answers shown with an alarm, and the number of last characters shown of each."""

Outlooks = Mapping[str, CurveResult | None]
"""The forecast of each evaluation set; None if there is none yet."""


@dataclass(kw_only=True)
class Health(Hook):
    """Reports each evaluation with its forecasts and the new alarms."""

    rows: Rows
    clock: Clock
    report: Callable[[Sequence[Row], Outlooks, Sequence[Alarm]], None]
    at_end: Callable[[str], float | None] = lambda axis: None
    """Returns the compute at the end of the budget."""
    errors: Callable[[], Mapping[tuple[str, str], str]] = dict
    num_unrewarded: Callable[[], int] = int
    """For these two see Parts."""
    graders: str = ""
    """Names of the graders."""
    remedies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Settings that help against each kind of alarm."""

    def __post_init__(self) -> None:
        self._news = AlarmNews()
        self._num_reported, self._stalled_s = len(self.rows.evals), self.clock.row()["time/stalled_s"]
        self._known_errors: Mapping[tuple[str, str], str] = {}

    def after_step(self, done: Any, end: RunEnd | None) -> None:
        new = self.rows.evals[self._num_reported :]
        if not new:
            return
        self._num_reported += len(new)
        with self.clock.aside("evaluation"):
            # Read the folder as `scalerl fit` does: the reader chooses the axis, and knows the device.
            known = outlooks_of(self.rows.folder)
            ahead = {name: with_end(curve, self.at_end(curve.axis)) for name, curve in known.items()}
            outlooks = {row["set"]: ahead.get(row["set"]) for row in new}
            self.report(new, outlooks, self._alarms(outlooks))

    def _of_set(self, name: str) -> list[Row]:
        return [row for row in self.rows.evals if row["set"] == name]

    def _alarms(self, outlooks: Outlooks) -> list[Alarm]:
        """Return the alarms that are new since the last call."""
        metrics = self.rows.metrics
        raised = alarms(
            number_columns(metrics),
            curves=outlooks,
            evals={name: self._of_set(name) for name in outlooks},
            remedies=self.remedies,
        )
        present = [self._with_grader(alarm) for alarm in raised if alarm.ended is None]
        return [*self._news.update(present), *self._events()]

    def _with_grader(self, alarm: Alarm) -> Alarm:
        """Name the grader if no answer ever earned a reward: the grader may be at fault, not the problems."""
        num = self.num_unrewarded()
        if alarm.kind != AlarmKind.EMPTY or alarm.cause != "all_wrong" or not num:
            return alarm
        answers = tuple((row["completion"][-LONGEST_ANSWER:], row["answer"]) for row in self.rows.samples[:NUM_SHOWN])
        return replace(alarm, cause="unrewarded", subject=self.graders, num_answers=num, answers=answers)

    def _events(self) -> list[Alarm]:
        """Return events since the last call: the first error of each grader and environment, and stalls."""
        before, self._known_errors = self._known_errors, dict(self.errors())
        new = sorted(self._known_errors.items() - before.items())
        events = [Alarm(kind=ERRORS[source], subject=name, detail=error) for (source, name), error in new]
        stalled_s = self.clock.row()["time/stalled_s"] - self._stalled_s
        if stalled_s > 0:
            events.append(Alarm(kind=AlarmKind.STALLED, value=stalled_s))
            self._stalled_s += stalled_s
        return events
