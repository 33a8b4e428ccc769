"""What the board shows of a run while it grows: the document of what its files hold now."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from boards import GrowingRun
from run_folders import write_run
from simulate import sigmoid

from scalerl.forecast.report import analyse, document
from scalerl.forecast.report.board.snapshot import Snapshot, take_snapshot
from scalerl.forecast.report.json_values import to_json
from scalerl.forecast.report.safe_files import Root
from scalerl.forecast.report.sources import Source


def write(path: Path, num_runs: int, num: int) -> Source:
    rows = ({"run": f"r{run}", "step": n, "reward": 0.1 + run / 100 + n / 200} for run in range(num_runs)
            for n in range(1, num))  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Source(path=path, root=Root(path.parent), kind="log", name="a")


def says(seen: Snapshot) -> dict[str, Any]:
    return {each.kind: each.values for each in document.says(seen.document)}


def test_a_run_past_its_peak_names_its_checkpoint(tmp_path: Path):
    compute = np.linspace(0.25, 20, 80)
    reward = sigmoid(np.minimum(compute, 12.0)) - 0.09 * np.maximum(compute - 12.0, 0.0) / 8.0
    reward = reward + 0.003 * np.random.default_rng(0).standard_normal(80)
    lines = [f"{x},{y}" for x, y in zip(compute, reward, strict=True)]
    (tmp_path / "a.csv").write_text("\n".join(["gpu_hours,reward", *lines]))
    seen = take_snapshot(Source(path=tmp_path / "a.csv", root=Root(tmp_path), kind="log", name="a"), 30.0)
    assert (seen.lines[0]["state"], seen.num_alarms) == ("past its peak", 0)
    found = says(seen)
    assert 8.0 < found["checkpoint_compute"]["last_good"] < 14.0


def test_fits_of_known_points_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fits: list[int] = []
    fit = analyse.fit
    monkeypatch.setattr(
        analyse, "fit", lambda compute, *rest, **given: fits.append(len(compute)) or fit(compute, *rest, **given)
    )
    source = write(tmp_path / "a.jsonl", 1, 14)
    take_snapshot(source)
    assert len(fits) == 2  # all of it, and the first half
    assert to_json(take_snapshot(source).document) == to_json(take_snapshot(source).document)
    assert len(fits) == 2


@pytest.mark.parametrize("counts", [3, "3", None, {"0": 3}])
def test_right_answers_that_are_not_a_list_are_left_out(tmp_path: Path, counts: Any):
    run = GrowingRun(tmp_path / "run")
    run.train(20)
    rows = [json.loads(line) for line in (run.folder / "evals.jsonl").read_text().splitlines()]
    (run.folder / "evals.jsonl").write_text("".join(json.dumps({**row, "num_correct": counts}) + "\n" for row in rows))
    seen = take_snapshot(Source(path=run.folder, root=Root(tmp_path), kind="run", name="run"))
    assert (seen.step, len(seen.lines)) == ("step 20", 1)


def test_a_run_is_read_again_when_it_has_grown_or_was_written_anew(tmp_path: Path):
    run = GrowingRun(tmp_path / "run")
    run.train(50)
    source = Source(path=run.folder, root=Root(tmp_path), kind="run", name="run")
    assert take_snapshot(source).step == "step 50"
    run.train(5)
    assert take_snapshot(source).step == "step 55"
    (run.folder / "metrics.jsonl").write_text('{"step": 1, "attempt": 1}\n')
    assert take_snapshot(source).step == "step 1"


def test_a_run_alone_has_its_name_in_the_answer(tmp_path: Path):
    folder = write_run(tmp_path / "run", num=12)
    seen = take_snapshot(Source(path=folder, root=Root(folder), kind="run", name="first"))
    (answer, *_) = [each for each in document.says(seen.document) if each.level == document.Level.ANSWER]
    assert answer.values["name"] == "first"


def test_rows_are_not_called_steps(tmp_path: Path):
    (tmp_path / "a.csv").write_text("\n".join(["gpu_hours,reward", *(f"{n},{n / 50}" for n in range(1, 9))]))
    seen = take_snapshot(Source(path=tmp_path / "a.csv", root=Root(tmp_path), kind="log", name="a"))
    assert (seen.step, take_snapshot(write(tmp_path / "b.jsonl", 1, 9)).step) == ("row 8", "step 8")


def test_what_cannot_be_read_is_said(tmp_path: Path):
    (tmp_path / "bad.csv").write_bytes(b"\0\1\2" * 50)
    seen = take_snapshot(Source(path=tmp_path / "bad.csv", root=Root(tmp_path), kind="log", name="bad"))
    assert seen.is_empty
    assert seen.problem
    assert "fault" in says(seen)


def test_overview_has_cells_for_each_curve_of_a_log(tmp_path: Path):
    seen = take_snapshot(write(tmp_path / "runs.jsonl", 2, 25))
    assert [(line["curve"], line["step"]) for line in seen.lines] == [("r0", "step 24"), ("r1", "step 24")]
    assert all(line["ceiling"] and line["do"] for line in seen.lines)


def test_overview_names_the_sets_of_a_run_and_what_cannot_be_read(tmp_path: Path):
    folder = write_run(tmp_path / "run", num=12, sets=("main", "hard"))
    seen = take_snapshot(Source(path=folder, root=Root(folder), kind="run", name="run", arm="run"))
    assert [line["curve"] for line in seen.lines] == ["main", "hard"]
    (tmp_path / "words.log").write_text("no step, no reward")
    (line,) = take_snapshot(Source(path=tmp_path / "words.log", root=Root(tmp_path), kind="log", name="words")).lines
    assert "words.log" in line["do"]
