"""Following a run folder: the same curves as the reader of finished runs has, restarts included."""

from pathlib import Path

import numpy as np
from boards import GrowingRun
from run_folders import write_run

from scalerl.logs.formats import read_table
from scalerl.logs.series import Selection, series_from
from scalerl.report.board.reading.inside import Root
from scalerl.report.board.reading.run_folder import RunFollower
from scalerl.report.board.reading.sources import Source, discover


def follower_of(folder: Path) -> RunFollower:
    follower = RunFollower(Source(path=folder, root=Root(folder), kind="run", name="run"))
    follower.poll()
    return follower


def test_curve_is_that_of_the_reader(tmp_path: Path):
    folder = write_run(tmp_path / "run", num=12, sets=("main", "hard"))
    follower = follower_of(folder)
    series, problem = follower.series(follower.columns())
    expected = series_from([read_table(folder)], Selection(x="gpu_hours"))
    assert problem == ""
    assert [data.evaluation_set for data in series] == [data.evaluation_set for data in expected]
    for mine, theirs in zip(series, expected, strict=True):
        np.testing.assert_array_equal(mine.compute, theirs.compute)
        np.testing.assert_array_equal(mine.reward, theirs.reward)
        assert (mine.start, mine.start_sd) == (theirs.start, theirs.start_sd)


def test_resumed_attempt_replaces_later_rows(tmp_path: Path):
    run = GrowingRun(tmp_path / "run")
    for _ in range(6):
        run.train(10)
        run.evaluate()
    follower = follower_of(run.folder)
    for step in range(31, 41):
        run.append("metrics.jsonl", {"step": step, "attempt": 2, "gpu_hours": 0.01 * step, "flops": 1e15 * step})
    run.append("evals.jsonl", {"step": 40, "attempt": 2, "set": "main", "gpu_hours": 0.4, "flops": 4e16, "reward": 0.9})
    assert follower.poll()
    columns = follower.columns()
    assert columns["step"].tolist() == list(range(1, 41))
    assert [row["step"] for row in follower.eval_rows()] == [0, 10, 20, 30, 40]
    assert follower.eval_rows()[-1]["reward"] == 0.9


def test_end_of_the_budget_at_the_pace_so_far(tmp_path: Path):
    run = GrowingRun(tmp_path / "run", budget_steps=400)
    run.train(100)
    follower = follower_of(run.folder)
    assert follower.end_compute(follower.columns()) == 4.0
    assert follower.max_lag == 8


def test_poll_reports_changes_only(tmp_path: Path):
    run = GrowingRun(tmp_path / "run")
    follower = follower_of(run.folder)
    assert not follower.poll()
    run.train(1)
    assert follower.poll()
    assert not follower.poll()
    (run.folder / "status.json").write_text('{"status": "done", "reason": "budget"}')
    assert follower.poll()
    assert follower.status == ("done", "budget")


def test_names_cannot_leave_the_study(tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    study = tmp_path / "study"
    study.mkdir()
    runs = '[{"arm": "a", "seed": 0, "folder": "../elsewhere"}, {"arm": "b", "seed": 0, "folder": "runs/b-seed0"}]'
    (study / "study.json").write_text(f'{{"name": "s", "runs": {runs}}}')
    discovery = discover([Root(tmp_path)])
    assert [source.arm for source in discovery.sources] == ["b"]
    assert len(discovery.studies[0].faults) == 1


def test_study_written_on_windows_is_followed(tmp_path: Path):
    GrowingRun(tmp_path / "s" / "runs" / "b-seed0")
    (tmp_path / "s" / "study.json").write_text(r'{"name": "s", "runs": [{"arm": "b", "folder": "runs\\b-seed0"}]}')
    (source,) = discover([Root(tmp_path / "s")]).sources
    assert source.path == tmp_path / "s" / "runs" / "b-seed0"


def test_discovery_of_all_kinds(tmp_path: Path):
    GrowingRun(tmp_path / "runs" / "mine")
    (tmp_path / "trl" / "checkpoint-10").mkdir(parents=True)
    (tmp_path / "trl" / "checkpoint-10" / "trainer_state.json").write_text('{"log_history": []}')
    (tmp_path / "trl" / "model.safetensors").write_bytes(b"0")
    (tmp_path / "verl.log").write_text("step:1 - critic/rewards/mean:0.1\n")
    (tmp_path / "notes.md").write_text("nothing")
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    GrowingRun(outside / "theirs")
    (tmp_path / "link").symlink_to(outside)
    sources = discover([Root(tmp_path)]).sources
    assert [(source.name, source.kind) for source in sources] == [("mine", "run"), ("trl", "log"), ("verl", "log")]
