"""A study on the page: compares its arms, with all seeds of an arm as one curve."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from scalerl import store
from scalerl.errors import InputError
from scalerl.logs.series import Selection, Series, series_from
from scalerl.logs.table import make_table, with_gpus
from scalerl.report.board.columns import number
from scalerl.report.board.fits import compare_arms
from scalerl.report.board.followed import Followed
from scalerl.report.board.reading.sources import Study
from scalerl.report.board.reading.tail import Tail

_SHARE = 10.0


class StudyView:
    """One study, and the comparison of its arms that a worker made last."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.version = 0
        self.is_stale = True
        self.busy = False
        self.comparison_json: dict[str, Any] | None = None
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

    def comparison(self, members: Sequence[Followed]) -> tuple[Any, tuple[Any, ...]] | None:
        """Return the call that compares the arms, None while there is nothing to compare."""
        self.is_stale = False
        series, arms = [], []
        for arm in dict.fromkeys(item.source.arm for item in members):
            of_arm = self._series([item for item in members if item.source.arm == arm])
            series += [replace(data, name=f"{arm}/{data.evaluation_set or ''}") for data in of_arm]
            arms += [arm] * len(of_arm)
        hours = {item.hours for item in members}
        name = hours.pop() if len(hours) == 1 else "GPU-hours"
        return (compare_arms, (series, arms, None, name)) if series else None

    def _series(self, runs: Sequence[Followed]) -> list[Series]:
        """Return the curves of one arm, one for each evaluation set; its seeds are runs of one curve."""
        placed = [
            (item.source.name, {**row, "seed": item.source.seed})
            for item in runs
            if item.follower is not None
            for row in item.follower.eval_rows()
        ]
        if not placed:
            return []
        axis = self.study.plan.get("compute") or "gpu_hours"
        try:
            table = make_table(self.study.path, "run", placed, y="reward", seed="seed", apart=("set",))
            table = with_gpus(table, None)
            return series_from([table], Selection(x=str(axis) if axis in table.columns else None))
        except InputError:
            return []

    def take(self, result: dict[str, Any] | None, *, seconds: float) -> None:
        self.busy = False
        self._next_at = time.monotonic() + min(_SHARE * seconds, 60.0)
        if result is not None:
            self.comparison_json = result

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
            "comparison": self.comparison_json,
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
