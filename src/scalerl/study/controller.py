"""Apply a policy: read what the runs have measured, record decisions in decisions.jsonl, and choose the next run.

A decision is written before its runs start, and is open until they have reached the share of the budget that it names.
After a kill, open decisions are carried out first. So this file is all that a resumed study needs to know.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from scalerl.forecast.report.metrics import number
from scalerl.runfolder import store
from scalerl.study.folder import evals_of_first_set, last_row, run_folder
from scalerl.study.plan import PlannedRun, StudyPlan
from scalerl.study.policy import EPSILON, POLICIES, ArmProgress, Stage
from scalerl.study.progress import RunStatus
from scalerl.study.spec import StudyBudgetSettings


class Controller:
    """Chooses the next run by the study's policy."""

    def __init__(
        self, plan: StudyPlan, folder: Path, on_decision: Callable[[store.Row], None] = lambda row: None
    ) -> None:
        """`on_decision` is called with the row of each new decision."""
        budget = plan.study.budget
        assert budget is not None
        self._budget: StudyBudgetSettings = budget
        self._plan, self._folder, self._on_decision = plan, folder, on_decision
        self._decide = POLICIES[budget.policy]
        self._file = folder / store.DECISIONS
        self.rows = store.read_decisions(folder)

    @property
    def ended(self) -> bool:
        """Whether the policy has made its choice."""
        return bool(self.rows) and self.rows[-1]["arm"] is None

    def next(self, statuses: Sequence[RunStatus]) -> tuple[RunStatus, float] | None:
        """Return the run to start now and the share of its budget to train to; None if no run should start now."""
        while True:
            if (task := self._open_task(statuses)) is not None:
                return task
            if self.ended:
                return None
            busy = frozenset(status.run.arm for status in statuses if status.state == "running")
            stage = self._decide(self._measured(statuses), self._budget.stages, self._budget.share, busy)
            if stage is None:
                return None
            self._write(stage)

    def _open_task(self, statuses: Sequence[RunStatus]) -> tuple[RunStatus, float] | None:
        for row in self.rows:
            for status in statuses:
                is_idle = status.run.arm == row["arm"] and status.state not in ("running", "failed", "done")
                if is_idle and share_spent(self._folder, status.run) < row["until"] - EPSILON:
                    return status, row["until"]
        return None

    def _write(self, stage: Stage) -> None:
        row = {
            "decision": len(self.rows) + 1,
            "time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "policy": self._budget.policy,
            "kind": stage.kind,
            "arm": stage.arm,
            "until": stage.until,
            "known": dict(stage.known),
        }
        store.append_row(self._file, row)
        self.rows.append(row)
        self._on_decision(row)

    def _measured(self, statuses: Sequence[RunStatus]) -> list[ArmProgress]:
        arms = [arm.name for arm in self._plan.arms if arm.skipped is None]
        by_arm = {arm: [status for status in statuses if status.run.arm == arm] for arm in arms}
        return [measure(self._folder, arm, by_arm[arm]) for arm in arms]


def measure(folder: Path, arm: str, statuses: Sequence[RunStatus]) -> ArmProgress:
    """Read what the runs of one arm have measured from their folders."""
    points, starts = [], []
    for place, status in enumerate(statuses):
        budget = dict(status.run.recipe.budget)
        for row in evals_of_first_set(run_folder(folder, status.run)):
            spent, samples = store.share_spent(budget, row), number(row.get("num_samples"))
            if spent == 0:
                starts.append(float(row["reward"]))
            else:
                points.append((spent, float(row["reward"]), place, int(samples) if samples >= 1 else None))
    return ArmProgress(
        name=arm,
        # A run may also end because its data are exhausted.
        share=min((1.0 if each.state == "done" else share_spent(folder, each.run) for each in statuses), default=0.0),
        num_runs=len(statuses),
        points=tuple(points),
        start=sum(starts) / len(starts) if starts else None,
        failed=any(status.state == "failed" for status in statuses),
    )


def share_spent(folder: Path, run: PlannedRun) -> float:
    """Return the share of its budget that a run has spent."""
    return store.share_spent(dict(run.recipe.budget), last_row(run_folder(folder, run)))
