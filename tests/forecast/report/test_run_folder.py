"""A run folder, read once or followed: its curves, its signals, its compute, and restarts."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from boards import GrowingRun
from known import known
from run_folders import write_run, write_study

from scalerl.errors import InputError
from scalerl.forecast.curves import State
from scalerl.forecast.logs import Selection, Series, formats, read, read_log, series_from
from scalerl.forecast.report import build
from scalerl.forecast.report import runs as runs_of_report
from scalerl.forecast.report.analyse import analyse_compare, fitted_curves
from scalerl.forecast.report.axes import unit_of
from scalerl.forecast.report.build import build_report, gather
from scalerl.forecast.report.document import Say
from scalerl.forecast.report.metrics import thinned
from scalerl.forecast.report.options import FitOptions
from scalerl.forecast.report.run_sections import lag_table, lines_of, run_says
from scalerl.forecast.report.run_series import run_series
from scalerl.forecast.report.runs import Run, hours_name, read_source
from scalerl.forecast.report.safe_files import Root
from scalerl.forecast.report.sections import document
from scalerl.forecast.report.sources import MOST_SOURCES, Source, discover
from scalerl.runfolder import store


def opened(folder: Path) -> Run:
    return read_source(Source(path=folder, root=Root(folder), kind="run", name="a", arm="a"))


def write_rows(path: Path, rows: list[dict[str, float | None]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def ordered(data: Series) -> Series:
    """Return a curve with the points of each run together, and runs by their numbers."""
    together = data.take(np.lexsort((data.compute, known(data.run))))
    return replace(together, run=np.unique(known(together.run), return_inverse=True)[1])


def test_curves_of_runs_are_those_of_the_log_reader(tmp_path: Path):
    """A study's series are made from its rows directly, and hold what the reader of any log would make of them."""
    folder = write_study(tmp_path / "study", num=12, seeds=(0, 1), sets=("main", "hard"))
    _, runs = gather([folder])
    ours = run_series([run.evaluations for run in runs])
    expected = series_from([read_log(folder)], Selection(by=("arm",), seed="seed"))
    assert [f"{data.name}/{data.evaluation_set}" for data in ours] == [data.name for data in expected]
    for mine, theirs in zip(map(ordered, ours), map(ordered, expected), strict=True):
        for name in ("compute", "reward", "run", "num_samples", "evaluation"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))
        for name in ("start", "start_sd", "x_label", "y_label", "y_scale", "evaluation_set", "problem"):
            assert getattr(mine, name) == getattr(theirs, name)
        assert mine.axes.keys() == theirs.axes.keys()
        assert {each.kind for each in mine.facts} == {each.kind for each in theirs.facts} - {"runs_apart"}


def test_report_reads_own_folders_without_the_reader_of_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refused(*given: object) -> None:
        raise AssertionError(given)

    for name in ("read_place", "series_from", "log_of_rows"):
        for module in (formats, build, runs_of_report):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, refused)
    folder = write_study(tmp_path / "study", num=12)
    single = folder / "runs" / "base-seed0"
    for inputs in ([folder], [single], [folder / "runs"]):
        assert all(curve.usable for curve in build_report(inputs, Selection(), FitOptions()).curves)


def test_own_runs_and_other_logs_are_on_one_axis(tmp_path: Path):
    folder = write_run(tmp_path / "run", num=12)
    rows = [f"{10 * step},{0.2 + 0.02 * step}" for step in range(1, 12)]
    (tmp_path / "other.csv").write_text("\n".join(["step,reward", *rows]))
    result = build_report([folder, tmp_path / "other.csv"], Selection(), FitOptions())
    assert {curve.axis for curve in result.curves} == {"step"}
    assert result.comparisons


def test_a_column_that_runs_do_not_count_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="gpu_hours, flops, tokens, step"):
        build_report([write_run(tmp_path / "run", num=12)], Selection(x="epochs"), FitOptions())


def test_resumed_attempt_replaces_later_rows(tmp_path: Path):
    run = GrowingRun(tmp_path / "run")
    for _ in range(6):
        run.train(10)
        run.evaluate()
    for step in range(31, 41):
        run.append("metrics.jsonl", {"step": step, "attempt": 2, "gpu_hours": 0.01 * step, "flops": 1e15 * step})
    run.append("evals.jsonl", {"step": 40, "attempt": 2, "set": "main", "gpu_hours": 0.4, "flops": 4e16, "reward": 0.9})
    followed = opened(run.folder)
    assert followed.columns["step"].tolist() == list(range(1, 41))
    assert [row["step"] for _, row in followed.evals] == [0, 10, 20, 30, 40]
    assert followed.evals[-1][1]["reward"] == 0.9


def test_every_curve_of_one_table_has_its_own_training_reward(tmp_path: Path):
    """Rows of several arms have the same steps: of each step the last row used to stand for all."""
    rows = [(arm, step, level + 0.001 * step) for arm, level in (("a", 0.1), ("b", 0.5)) for step in range(10, 200, 10)]
    text = "\n".join(["arm,step,reward", *(f"{arm},{step},{reward:.3f}" for arm, step, reward in rows)])
    (tmp_path / "log.csv").write_text(text)
    result = build_report([tmp_path / "log.csv"], Selection(), FitOptions())
    (chart,) = [each for each in lines_of(result.runs, result.curves) if each.key == "reward/mean"]
    assert chart.has_legend
    firsts = {name: (colour, values[0]) for name, colour, _, values in chart.lines}
    assert firsts == {"a": (0, 0.11), "b": (1, 0.51)}


@pytest.mark.parametrize(
    ("head", "column_of", "names", "y"),
    [
        ("step,a-run,b-run", "{step},{low},{high}", ["a-run", "b-run"], "a-run,b-run"),
        ('Step,"first - train/reward","second - train/reward"', "{step},{low},{high}", ["first", "second"], None),
        ("step,set,train/reward", "{step},math,{low}\n{step},code,{high}", ["log, math", "log, code"], None),
    ],
)
def test_training_reward_of_every_curve_of_a_log_is_drawn_with_its_name(
    tmp_path: Path, head: str, column_of: str, names: list[str], y: str | None
):
    rows = [column_of.format(step=step, low=0.1 + step / 1000, high=0.5 + step / 1000) for step in range(10, 200, 10)]
    (tmp_path / "log.csv").write_text("\n".join([head, *rows]))
    result = build_report([tmp_path / "log.csv"], Selection(y=y), FitOptions())
    (chart,) = [each for each in lines_of(result.runs, result.curves) if each.key == "reward/mean"]
    assert [(name, colour) for name, colour, *_ in chart.lines] == [(name, place) for place, name in enumerate(names)]
    assert [values[0] for *_, values in chart.lines] == [0.11, 0.51]


def test_curves_too_early_to_judge_say_what_they_lack(tmp_path: Path):
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("step,reward\n10,0.1\n20,0.2\n30,0.3\n")
    made = document(build_report([tmp_path / "a.csv", tmp_path / "b.csv"], Selection(), FitOptions()))
    answer = next(each for each in made if each.key.startswith("answer"))
    needed = [each.values["needed"] for each in answer.blocks if isinstance(each, Say) and "needed" in each.values]
    assert needed == [6, 6]


def test_finished_run_is_not_told_to_wait(tmp_path: Path):
    folder = write_run(tmp_path / "run", num=3)
    result = build_report([folder], Selection(), FitOptions())
    (curve,) = result.curves
    assert (curve.state, curve.is_over) == (State.TOO_EARLY, True)
    assert replace(curve, is_over=False).to_do != curve.to_do
    (folder / store.EVALS).write_text("")
    with pytest.raises(InputError) as ended:
        build_report([folder], Selection(), FitOptions())
    assert "wait" not in str(ended.value)


def test_curves_that_are_not_compared_have_an_answer_each(tmp_path: Path):
    for name, axis in (("a", "gpu_hours"), ("b", "tokens")):
        rows = [f"{100 * step},{0.2 + 0.02 * step}" for step in range(1, 12)]
        (tmp_path / f"{name}.csv").write_text("\n".join([f"{axis},pass_rate", *rows]))
    made = document(build_report([tmp_path / "a.csv", tmp_path / "b.csv"], Selection(), FitOptions()))
    (answer,) = [each for each in made if each.key.startswith("answer")]
    kinds = [block.kind for block in answer.blocks if isinstance(block, Say)]
    assert kinds.count("stands") == 2


def test_end_of_the_budget_at_the_pace_so_far(tmp_path: Path):
    run = GrowingRun(tmp_path / "run", budget_steps=400)
    run.train(100)
    followed = opened(run.folder)
    assert followed.end_compute("gpu_hours") == 4.0
    assert followed.max_lag == 8


@pytest.mark.parametrize(("waits_for", "limit"), [("groups", 8), ("batch", float("inf"))])
def test_only_waiting_for_groups_limits_every_lag(tmp_path: Path, waits_for: str, limit: float):
    run = GrowingRun(tmp_path / "run", budget_steps=400)
    recipe = {"pipeline": {"max_lag": 8, "waits_for": waits_for}}
    (run.folder / "recipe.json").write_text(json.dumps(recipe))
    assert opened(run.folder).max_lag == limit


def test_lag_is_shown_as_seen_and_as_expected(tmp_path: Path):
    for name, lags, recipe in (("a", (1, 9), {"waits_for": "batch"}), ("b", (1, 3), {"waits_for": "groups"})):
        folder = write_run(tmp_path / name)
        rows = [{"step": n, "rollout/lag_max": lag, "rollout/lag_mean": lag / 2} for n, lag in enumerate(lags, 1)]
        write_rows(folder / "metrics.jsonl", rows)
        (folder / "recipe.json").write_text(json.dumps({"pipeline": {"max_lag": 4, **recipe}}))
        (folder / "env.json").write_text(json.dumps({"expected_lag": {"mean": 2.25, "largest": 8}}))
    shown = lag_table([opened(tmp_path / name) for name in "ab"])
    assert shown is not None
    assert [row[1:] for row in shown.rows] == [
        ("the mean: 4", "2.50", "2.25", "9", "8.0"),
        ("every group: 4", "1.00", "2.25", "3", "8.0"),
    ]


def test_damaged_lines_are_named_and_the_rest_is_kept(tmp_path: Path):
    folder = write_run(tmp_path / "a", num=8)
    lines = (folder / "evals.jsonl").read_text().splitlines()
    (folder / "evals.jsonl").write_text("\n".join([*lines[:3], "{damaged", *lines[3:]]))
    run = opened(folder)
    (fault,) = run.faults()
    assert (fault.kind, fault.values["file"], fault.values["first"]) == ("line_left_out", folder / "evals.jsonl", 4)
    assert len(run.evals) == len(lines)


def test_largest_lag_is_drawn_by_its_largest_and_the_mean_by_its_mean(tmp_path: Path):
    lags = np.array([1, 9, 2, 4, np.nan])
    assert [thinned(f"rollout/lag_{kind}", lags[:4], 2) for kind in ("max", "mean")] == [[9, 4], [5, 3]]
    folder = write_run(tmp_path / "a")
    rows = [{"step": n, "rollout/lag_max": lag, "rollout/lag_mean": lag} for n, lag in enumerate((1, 9, None, 2), 1)]
    write_rows(folder / "metrics.jsonl", rows)
    charts = lines_of([opened(folder)])
    assert {chart.key: list(chart.lines[0][3]) for chart in charts} == {
        "rollout/lag_max": [1, 9, None, 2], "rollout/lag_mean": [1, 9, None, 2],
    }  # fmt: skip


def test_repeated_and_stalled_work_is_reported(tmp_path: Path):
    folder = write_run(tmp_path / "a")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    # Killed after step 100; the second attempt goes on from step 70 and pays for steps 80 to 100 again.
    first, again = rows[:10], [row | {"attempt": 2} for row in rows[7:]]
    for row in again:
        row["gpu_hours"] += 0.3
        row["flops"] += rows[9]["flops"] - rows[6]["flops"]
    again[-1]["time/stalled_s"] = 68.0
    write_rows(folder / "metrics.jsonl", [*first, *again])
    run = opened(folder)
    assert (run.repeated["num_steps"], run.repeated["gpu_hours"]) == (3, pytest.approx(0.3))
    found = {each.kind: each.values for each in run_says([run])}
    assert found["repeated"]["num_steps"] == 3
    assert found["stood_still"]["seconds"] == 68.0
    assert opened(write_run(tmp_path / "b")).repeated == {}


@pytest.mark.parametrize(
    "status, is_cut",
    [
        ({"status": "done"}, False),
        ({"status": "running"}, False),
        ({"status": "stopped", "reason": "asked to stop"}, True),
        ({"status": "failed", "reason": "out of memory"}, True),
        (None, False),
    ],
)
def test_only_a_run_that_is_known_to_have_ended_early_is_said_to(
    tmp_path: Path, status: dict[str, str] | None, is_cut: bool
):
    folder = write_run(tmp_path / "a", status=status)
    if status is None:
        (folder / "status.json").unlink()
    assert ("not_finished" in {each.kind for each in run_says([opened(folder)])}) == is_cut


def test_hours_are_gpu_hours_only_on_a_gpu(tmp_path: Path):
    runs = []
    for name, device in (("a", "cpu"), ("b", "NVIDIA H200")):
        folder = write_run(tmp_path / name)
        (folder / "env.json").write_text(json.dumps({"device": device}))
        runs.append(opened(folder))
    assert [run.hours_name for run in runs] == ["CPU-hours", "GPU-hours"]
    assert hours_name(run.hours_name for run in runs) == "GPU-hours"
    # The logs of others do not say what they ran on.
    assert hours_name([]) == "GPU-hours"


@pytest.mark.parametrize(("device", "unit"), [("cpu", "CPU-hours"), ("NVIDIA H200", "GPU-hours")])
def test_fit_and_report_name_the_hours_of_the_device(tmp_path: Path, device: str, unit: str):
    folder = write_run(tmp_path / "a")
    (folder / "env.json").write_text(json.dumps({"device": device}))
    for series in (read([folder], Selection(x="gpu_hours")), run_series([opened(folder).evaluations], "gpu_hours")):
        (curve,) = fitted_curves(series, FitOptions())
        assert curve.unit == unit


def test_a_report_on_run_folders_takes_no_other_option_on_columns(tmp_path: Path):
    folder = write_run(tmp_path / "run", num=12)
    with pytest.raises(InputError, match="--x"):
        build_report([folder], Selection(y="reward"), FitOptions())
    assert {curve.axis for curve in build_report([folder], Selection(x="tokens"), FitOptions()).curves} == {"tokens"}


def test_hours_of_cpus_and_gpus_are_not_compared(tmp_path: Path):
    study = write_study(tmp_path / "study", seeds=(0, 1))
    for seed in (0, 1):
        (study / f"runs/lower-seed{seed}/env.json").write_text(json.dumps({"device": "NVIDIA H200"}))
    series = series_from([read_log(study)], Selection(x="gpu_hours"))
    assert [unit_of(each, "gpu_hours") for each in series] == ["CPU-hours", "GPU-hours"]
    with pytest.raises(InputError, match="CPU-hours and GPU-hours"):
        analyse_compare(series, FitOptions(), None)
    result = analyse_compare(series_from([read_log(study)], Selection(x="flops")), FitOptions(), None)
    assert [each.axis for each in result.by_axis[""]] == ["flops", "tokens", "step"]


def test_names_cannot_leave_the_study(tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    study = tmp_path / "study"
    study.mkdir()
    runs = '[{"arm": "a", "seed": 0, "folder": "../elsewhere"}, {"arm": "b", "seed": 0, "folder": "runs/b-seed0"}]'
    (study / "study.json").write_text(f'{{"name": "s", "runs": {runs}}}')
    run, found = discover([Root(tmp_path)])[0]
    assert (run.kind, run.arm, found.kind) == ("run", "b", "study")
    assert len(found.faults) == 1


def test_study_written_on_windows_is_followed(tmp_path: Path):
    GrowingRun(tmp_path / "s" / "runs" / "b-seed0")
    (tmp_path / "s" / "study.json").write_text(r'{"name": "s", "runs": [{"arm": "b", "folder": "runs\\b-seed0"}]}')
    (source, _), _ = discover([Root(tmp_path / "s")])
    assert source.path == tmp_path / "s" / "runs" / "b-seed0"


def test_a_study_of_too_many_runs_keeps_its_page(tmp_path: Path):
    runs = [{"arm": "base", "seed": seed, "folder": f"runs/base-seed{seed}"} for seed in range(MOST_SOURCES + 2)]
    (tmp_path / "study.json").write_text(json.dumps({"name": "large", "runs": runs}))
    sources, notes = discover([Root(tmp_path)])
    assert [source.kind for source in sources] == ["run"] * MOST_SOURCES + ["study"]
    assert [(note.kind, note.values["num"]) for note in notes] == [("too_many_sources", 2)]


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
    sources, _ = discover([Root(tmp_path)])
    assert [(source.name, source.kind) for source in sources] == [("mine", "run"), ("trl", "log"), ("verl", "log")]
