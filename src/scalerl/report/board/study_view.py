"""A study on the page: compares its arms, with all seeds of an arm as one curve."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scalerl import store
from scalerl.errors import UserError
from scalerl.logs.series import Selection
from scalerl.report.board.followed import Followed, Slot
from scalerl.report.columns import number
from scalerl.report.content import page_json
from scalerl.report.files import Root, Tail
from scalerl.report.results import FitOptions
from scalerl.report.sources import Study
from scalerl.report.views import build_report

FILES = (store.RECIPE, store.ENV, store.METRICS, store.EVALS, store.STATUS)


class StudyView:
    """One study, and the comparison of its arms that a worker made last."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.version = 0
        self.is_stale = True
        """Whether its arms should be compared again."""
        self.slot = Slot()
        self.report: dict[str, Any] = {"report": None, "problem": ""}
        self._decisions = Tail(study.path / store.DECISIONS, study.root)
        self._decision: dict[str, Any] = {}

    def poll(self) -> bool:
        """Read what the policy of the study has decided since the last look; return whether it has."""
        added = self._decisions.read()
        if added.changed:
            self._decision = added.rows[-1].row if added.rows else {}
        return added.changed

    def is_inside(self) -> bool:
        """Return whether all files of its runs lie in its folder."""
        inside = Root(self.study.path)
        folders = [self.study.path / store.portable(str(row.get("folder"))) for row in self.study.plan.get("runs", [])]
        return all(inside.holds(folder / name) for folder in folders for name in FILES)

    def summary_json(self, members: Sequence[Followed]) -> dict[str, Any]:
        states = [item.status()[0] for item in members]
        return {
            "key": self.study.key,
            "version": self.version,
            "name": self.study.name,
            "num_runs": len(members),
            "num_done": states.count("done"),
            "num_running": states.count("running"),
        }

    def detail_json(self, members: Sequence[Followed]) -> dict[str, Any]:
        plan = self.study.plan
        description = plan.get("description")
        arms: dict[str, list[dict[str, Any]]] = {}
        for item in members:
            summary = item.summary_json()
            shown = ("key", "seed", "status", "reason", "step", "reward", "num_alarms", "updated_at")
            arms.setdefault(item.source.arm, []).append({key: summary[key] for key in shown})
        return {
            **self.summary_json(members),
            "description": description if isinstance(description, str) else "",
            "base": str(plan.get("base") or ""),
            "faults": list(self.study.faults),
            "arms": [{"arm": arm, "runs": runs} for arm, runs in arms.items()],
            **self.report,
            "planner": planner_words(self._decision),
            "decision": str(self._decision.get("kind") or ""),
        }


def study_report(folder: Path) -> dict[str, Any]:
    """Return the report of a study on its own axis, without the views that only a finished page needs."""
    try:
        return {"report": page_json(build_report([folder], Selection(), FitOptions(), quick=True)), "problem": ""}
    except UserError as error:
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
