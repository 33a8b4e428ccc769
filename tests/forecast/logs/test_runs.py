"""What runs are to each other: joined, contained, begun anew, or seeds of one curve."""

from pathlib import Path
from typing import Any

import pytest
from read_logs import write

from scalerl.forecast.logs import Selection, read_log
from scalerl.forecast.logs.runs import LoggedRun, runs_of


def rows(steps: range, lift: float = 0.0, **labels: Any) -> list[dict[str, Any]]:
    return [{"step": step, **labels, "reward": round(0.1 + lift + step / 100, 4)} for step in steps]


def runs(folder: Path, logs: dict[str, list[dict[str, Any]]], **options: Any) -> list[LoggedRun]:
    """Return the runs of files that are named as a list of them is."""
    names = [name.removesuffix(".jsonl") * (len(logs) > 1) for name in logs]
    read = [read_log(write(folder / name, content)) for name, content in logs.items()]
    return runs_of([log.plan(Selection(**options), name) for log, name in zip(read, names, strict=True)])


def kinds(run: LoggedRun) -> set[str]:
    return {fact.kind for fact in run.facts}


def test_files_that_continue_each_other_are_one_run(tmp_path: Path) -> None:
    (run,) = runs(tmp_path, {"b.jsonl": rows(range(20, 40)), "a.jsonl": rows(range(1, 20))})
    assert run.steps.tolist() == list(range(1, 40))
    assert "files_joined" in kinds(run)


def test_run_that_another_file_begins_with_is_left_out(tmp_path: Path) -> None:
    (run,) = runs(tmp_path, {"a.jsonl": rows(range(1, 20)), "b.jsonl": rows(range(1, 40))})
    assert (len(run.frame), "contained" in kinds(run)) == (39, True)


def test_other_rewards_at_equal_steps_are_other_runs(tmp_path: Path) -> None:
    first, second = runs(tmp_path, {"a.jsonl": rows(range(1, 20)), "b.jsonl": rows(range(1, 40), 0.2)})
    assert (len(first.frame), len(second.frame)) == (19, 39)
    assert first.key != second.key


def test_seeds_in_names_share_a_curve(tmp_path: Path) -> None:
    logs = {f"grpo-seed{seed}.jsonl": rows(range(1, 20), seed / 10) for seed in (0, 1)}
    found = runs(tmp_path, logs)
    assert len({tuple(run.key.items()) for run in found}) == 1
    assert len({tuple(run.repeat.items()) for run in found}) == 2
    assert all("seeds_by_name" in kinds(run) for run in found)


def test_labels_keep_runs_apart(tmp_path: Path) -> None:
    content = [row for arm in ("one", "two") for row in rows(range(1, 20), arm=arm)]
    assert [run.key["arm"] for run in runs(tmp_path, {"a.jsonl": content})] == ["one", "two"]


@pytest.mark.parametrize(
    ("again", "num_runs", "kind"),
    [(range(1, 20), 2, "attempts"), (range(10, 40), 1, "superseded")],
    ids=["begun anew", "resumed"],
)
def test_run_that_goes_back_is_split_or_loses_what_was_superseded(
    tmp_path: Path, again: range, num_runs: int, kind: str
) -> None:
    found = runs(tmp_path, {"a.jsonl": rows(range(1, 20)) + rows(again, 0.05)})
    assert len(found) == num_runs
    assert all(kind in kinds(run) for run in found)
    assert [run.steps.tolist() for run in found] == ([[*range(1, 20)]] * 2 if num_runs == 2 else [[*range(1, 40)]])


def test_rows_that_a_filter_drops_are_no_restart(tmp_path: Path) -> None:
    """Both arms have one size, so that rows of the second would seem to continue those of the first anew."""
    content = rows(range(10, 20), arm="one", size=1) + rows(range(5, 20), arm="two", size=1)
    [run] = runs(tmp_path, {"a.jsonl": content}, by=("size",), where=(("arm", "one"),))
    assert len(run.points) == 10
    assert not kinds(run) & {"superseded", "attempts", "short_attempts"}


def test_run_without_a_reward_is_left_out_and_named(tmp_path: Path) -> None:
    loud = [row for arm in ("one", "two") for row in rows(range(1, 20), arm=arm)]
    silent = [{"step": step, "arm": "silent", "loss": 1.0} for step in range(1, 20)]
    run, other = runs(tmp_path, {"a.jsonl": loud + silent})
    assert (run.key["arm"], other.key["arm"]) == ("one", "two")
    assert [fact.values["names"] for fact in run.facts if fact.kind == "no_reward"] == [("silent",)]


def test_seed_without_a_reward_is_named(tmp_path: Path) -> None:
    loud = [row for seed in (0, 1) for row in rows(range(1, 20), arm="one", seed=seed)]
    silent = [{"step": step, "arm": "one", "seed": 2, "loss": 1.0} for step in range(1, 20)]
    run, _ = runs(tmp_path, {"a.jsonl": loud + silent})
    assert [fact.values["names"] for fact in run.facts if fact.kind == "no_reward"] == [("2",)]
