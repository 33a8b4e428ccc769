"""A study on the page: compares its arms, with all seeds of an arm as one curve."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scalerl import store
from scalerl.errors import InputError, UserError
from scalerl.logs.series import Selection
from scalerl.report.board.columns import number
from scalerl.report.board.followed import Followed
from scalerl.report.board.reading.inside import Root
from scalerl.report.board.reading.sources import Study
from scalerl.report.board.reading.tail import Tail
from scalerl.report.content import report_json
from scalerl.report.results import FitOptions
from scalerl.report.views import build_report

_SHARE = 10.0
FILES = (store.RECIPE, store.ENV, store.METRICS, store.EVALS, store.STATUS)


class StudyView:
    """One study, and the comparison of its arms that a worker made last."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.version = 0
        self.is_stale = True
        self.busy = False
        self.report: dict[str, Any] = {"report": None, "problem": ""}
        self._decisions = Tail(study.path / store.DECISIONS, study.root)
        self._decision: dict[str, Any] = {}
        self._next_at = 0.0

    def poll(self) -> bool:
        """Read what the policy of the study has decided since the last look; return whether it has."""
        added = self._decisions.read()
        if added.restarted:
            self._decision = {}
        if added.rows:
            self._decision = added.rows[-1][1]
        return bool(added.rows) or added.restarted

    def is_due(self, now: float) -> bool:
        """Return whether its arms should be compared again."""
        return self.is_stale and not self.busy and now >= self._next_at

    def comparison(self) -> tuple[Any, tuple[Any, ...]] | None:
        """Return the call that compares the arms, None where a file of the study lies outside it."""
        self.is_stale = False
        inside = Root(self.study.path)
        folders = [self.study.path / store.portable(str(row.get("folder"))) for row in self.study.plan.get("runs", [])]
        files = [folder / name for folder in folders for name in FILES]
        return (study_report, (self.study.path,)) if all(inside.holds(path) for path in files) else None

    def take(self, result: dict[str, Any] | None, *, seconds: float) -> None:
        self.busy = False
        self._next_at = time.monotonic() + min(_SHARE * seconds, 60.0)
        if result is not None:
            self.report = result

    def summary_json(self, members: Sequence[Followed]) -> dict[str, Any]:
        return {
            "key": self.study.key,
            "version": self.version,
            "name": self.study.name,
            "num_runs": len(members),
            "num_done": sum(item.status()[0] == "done" for item in members),
            "num_running": sum(item.status()[0] == "running" for item in members),
        }

    def detail_json(self, members: Sequence[Followed]) -> dict[str, Any]:
        plan = self.study.plan
        description = plan.get("description")
        return {
            **self.summary_json(members),
            "description": description if isinstance(description, str) else "",
            "base": str(plan.get("base") or ""),
            "faults": list(self.study.faults),
            "arms": self._arms(members),
            **self.report,
            "planner": planner_words(self._decision),
            "decision": str(self._decision.get("kind") or ""),
        }

    def _arms(self, members: Sequence[Followed]) -> list[dict[str, Any]]:
        arms: dict[str, list[Followed]] = {}
        for item in members:
            arms.setdefault(item.source.arm, []).append(item)
        return [
            {
                "arm": arm,
                "runs": [
                    {"key": item.source.key, "seed": item.source.seed, **_state_of(item)} for item in of_arm
                ],
            }
            for arm, of_arm in arms.items()
        ]  # fmt: skip


def study_report(folder: Path) -> dict[str, Any]:
    """Return the report of a study on its own axis, without the views that only a finished page needs."""
    try:
        return {"report": report_json(build_report([folder], Selection(), FitOptions(), quick=True)), "problem": ""}
    except (InputError, UserError) as error:
        return {"report": None, "problem": str(error)}


def planner_words(decision: Mapping[str, Any]) -> dict[str, str]:
    """Return what the policy of a study knew about each arm at its last decision; empty for a study without one."""
    known = decision.get("known")
    rows = known.get("arms") if isinstance(known, Mapping) else None
    words: dict[str, str] = {}
    for row in rows if isinstance(rows, list) else ():
        if not isinstance(row, Mapping) or not isinstance(row.get("name"), str):
            continue
        parts = [str(row["action"])] if row.get("action") else []
        if (p_best := number(row.get("p_best"))) == p_best:
            parts.append(f"P(best) at the target {p_best:.2f}")
        if row["name"] == (known or {}).get("favourite"):
            parts.append("the favourite")
        if row["name"] == decision.get("arm"):
            until = number(decision.get("until"))
            parts.append("given compute next" + (f", until {until:.0%} of its budget" if until == until else ""))
        words[row["name"]] = ", ".join(parts)
    return words


def _state_of(item: Followed) -> dict[str, Any]:
    summary = item.summary_json()
    return {key: summary[key] for key in ("status", "reason", "step", "reward", "num_alarms", "updated_at")}
