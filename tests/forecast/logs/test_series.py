"""Which rows make which curve, with which start and scale, and the message for each fault."""

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from read_logs import fault, kinds, names, read, runs, write
from run_folders import write_run, write_study

import scalerl
from scalerl.errors import InputError
from scalerl.forecast.logs.axes import UNEVEN_TIME, disagreement
from scalerl.forecast.logs.names import curve_names, file_names
from scalerl.forecast.logs.selection import SCALES, Selection, YScale
from scalerl.forecast.logs.series import Series
from scalerl.forecast.report.build import build_report
from scalerl.forecast.report.options import FitOptions
from scalerl.forecast.report.words import text
from scalerl.runfolder import store

ARMS = [("a", 1, 0.3), ("a", 2, 0.4), ("b", 1, 0.5), ("b", 2, 0.6)]


def _only(path: Path, header: str, rows: Sequence[Sequence[Any]], **options: Any) -> Series:
    [series] = read(write(path, (header, rows)), **options)
    return series


def _run(folder: Path, rows: list[dict[str, Any]], **recipe: Any) -> Path:
    store.write_json(write(folder / "evals.jsonl", rows).with_name("recipe.json"), recipe)
    return folder


def _evals(set_name: str = "val", shift: float = 0.0) -> list[dict[str, Any]]:
    return [
        {"step": 10 * at, "attempt": 1, "set": set_name, "gpu_hours": 2.0 * at, "reward": 0.2 + 0.1 * at + shift}
        | {"num_samples": 400, "prompts_hash": "ab"}
        for at in range(4)
    ]


def _as_dict(series: Series) -> dict[str, Any]:
    fields = {name: getattr(series, name) for name in Series.__slots__ if name != "plan"}
    fields |= {"axes": {name: values.tolist() for name, values in series.axes.items()}}
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in fields.items()}


# Curves and runs

PLAIN = "gpu_hours,reward"
SIZES = [(arm, size, compute, reward) for arm, compute, reward in ARMS for size in (7, 70.0)]
LR = [(1, "a", 1, 0.1), (2, "a", 2, 0.2), (1, "b", 3, 0.3)]
WANDB = "Step,s0 - val/reward,s0 - val/reward__MIN,s1 - val/reward,s1 - val/reward__MIN"
STEPS = [(step, round(0.1 + 0.013 * step, 3)) for step in range(1, 9)]
UP = [step for step, _ in STEPS]
DAYS = [(step, rate, f"2026-01-0{1 + step // 5}", f"{8 + step % 5}:00:00".zfill(8)) for step, rate in STEPS]


def _labelled(*labels: Any, steps: Sequence[tuple[int, float]] = STEPS) -> list[tuple[Any, ...]]:
    return [(*(label if isinstance(label, tuple) else (label,)), *row) for label in labels for row in steps]


# header, rows, options -> (name, compute, runs) of each curve, and the kinds of facts of the first
CURVES: dict[str, tuple[str, list[Any], dict[str, Any], list[tuple[Any, ...]], list[str]]] = {
    "sorted": (PLAIN, [(3, 0.6), (1, 0.3), (2, 0.4), (2, 0.45)], {}, [("log", [1, 2, 2, 3], 1)], []),
    "by": ("arm,size,gpu_hours,reward", SIZES, {"by": ("arm", "size")},
           [(f"{arm}/size={size}", [1, 2], 1) for arm in "ab" for size in (7, 70)], []),
    "wandb": (WANDB, [(1, 0.1, 0, 0.2, 0), (2, 0.3, 0, 0.4, 0)], {}, [("s0", [1, 2], 1), ("s1", [1, 2], 1)],
              ["one_column_per_run", "runs_apart"]),
    "wandb seeds": (WANDB, [(1, 0.1, 0, 0.2, 0), (2, 0.3, 0, 0.4, 0)], {"seed": "run"}, [("log", [1, 2, 1, 2], 2)],
                    ["one_column_per_run"]),
    "where": ("lr,arm,gpu_hours,reward", LR, {"where": (("lr", "1.0"), ("arm", "b"))}, [("log", [3], 1)], []),
    "where not": ("lr,arm,gpu_hours,reward", LR, {"where_not": (("lr", "1.0"),)}, [("log", [2], 1)], []),
    "labels": ("rho,gpu_hours,reward", [(0.7, 1, 0.5), (0.9, 1, 0.5)], {"by": ("rho",), "labels": ("low", "high")},
               [("low", [1], 1), ("high", [1], 1)], []),
    "columns that are named": ("alpha,beta", [(1, 0.5)], {"x": "alpha", "y": "beta"}, [("log", [1], 1)], []),
    "a step that is asked for": ("step,reward", [(1, 0.5)], {"x": "step", "gpus": 8}, [("log", [1], 1)], []),
    "seeds": ("seed,gpu_hours,reward", _labelled(0, 1), {}, [("log", 2 * UP, 2)], []),
    "seeds, named": ("seed,gpu_hours,reward", _labelled(0, 1), {"seed": "seed"}, [("log", 2 * UP, 2)], []),
    "one seed": ("seed,gpu_hours,reward", _labelled(7), {}, [("log", UP, 1)], []),
    "a seed per row": ("gpu_hours,reward,seed", [(*row, 100 + row[0]) for row in STEPS], {}, [("log", UP, 1)], []),
    "seeds are no attempts": ("step,gpu_hours,reward,seed", [(s, 100 * s, 0.4, n) for n in (0, 1) for s in UP], {},
                              [("log", [100 * s for s in UP] * 2, 2)], []),
    "runs": ("run,step,reward", _labelled("new", "base"), {}, [("new", UP, 1), ("base", UP, 1)], ["runs_apart"]),
    "a run without rewards": ("run,step,reward", [*_labelled("new", "base"), *(("c", step, "") for step in UP)], {},
                              [("new", UP, 1), ("base", UP, 1)], ["no_reward", "runs_apart"]),
    "runs, named": ("run,step,reward", _labelled("new", "base"), {"seed": "run"}, [("log", 2 * UP, 2)], []),
    "an id per attempt": ("run_id,step,reward", [("x1" if step < 5 else "x2", step, r) for step, r in STEPS], {},
                          [("log", UP, 1)], ["runs_joined"]),
    "ids that overlap": ("run_id,step,reward", [*_labelled("a"), *_labelled("b", steps=STEPS[5:]), ("b", 9, 0.5)], {},
                         [("log", [*UP, 9], 1)], ["runs_joined", "superseded"]),
    "ids in two recipes": ("recipe,run,step,reward",
                           [(arm, "a" if step < 5 else "b", step, r) for arm in "xy" for step, r in STEPS], {},
                           [("x", UP, 1), ("y", UP, 1)], ["runs_joined", "runs_apart"]),
    "a run without a name": ("run,step,reward", _labelled("new", "base", ""), {},
                             [(f"attempt {at}", UP, 1) for at in (1, 2, 3)], ["attempts"]),
    "runs with seeds": ("run,seed,step,reward", _labelled(("r0", 0), ("r1", 1)), {}, [("log", 2 * UP, 2)], []),
    "clock from the first row": ("step,elapsed_s,reward", [(s, 360 * (s - 10), s / 100) for s in range(10, 60, 10)],
                                 {}, [("log", [1, 2, 3, 4, 5], 1)], []),
    "a date and a time": ("step,reward,date,time", DAYS, {}, [("log", UP, 1)], []),
    "written twice": ("step,reward", [row for row in STEPS for _ in range(2)], {}, [("log", UP, 1)],
                      ["held_values"]),
    "two rows per step": ("step,reward", [(s, r + shift) for s, r in STEPS for shift in (0, 0.002)], {},
                          [("log", sorted(2 * UP), 1)], []),
    "one of two held out": ("split,step,reward", _labelled("train", "test"), {"holdout": ("split", "test")},
                            [("log", UP, 1)], []),
    "single answers": ("step,reward", [(step, float(at < step)) for step in UP for at in range(8)], {},
                       [("log", UP, 1)], ["answers_averaged"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CURVES)
def test_rows_make_curves(tmp_path: Path, name: str) -> None:
    header, rows, options, expected, facts = CURVES[name]
    curves = read(write(tmp_path / "log.csv", (header, rows)), **options)
    found = [(one.name, one.compute.tolist(), len(runs(one)) or 1) for one in curves]
    assert found == [(label, pytest.approx(compute), num) for label, compute, num in expected]
    assert kinds(curves[0]) == facts


def test_rewards_follow_their_compute(tmp_path: Path) -> None:
    rows = [("train", 1, 0.3), ("late", 5, 0.6), ("train", 2, 1.00000002), ("late", 4, -1e-8)]
    series = _only(tmp_path / "log.csv", "kind,gpu_hours,reward", rows, holdout=("kind", "late"))
    assert (series.compute.tolist(), series.reward.tolist()) == ([1, 2], [0.3, 1.0])
    assert (series.holdout_compute.tolist(), series.holdout_reward.tolist()) == ([4, 5], [0.0, 0.6])
    assert (series.compute.dtype, series.num_samples, series.evaluation, series.problem) == (np.float64, *[None] * 3)


def test_by_pools_files_into_runs_of_a_curve(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{name}.csv", ("arm,gpu_hours,reward", ARMS)) for name in ("one", "two")]
    first, _ = read(*paths, by=("arm",))
    assert first.run is not None
    assert (first.name, first.run.tolist()) == ("a", ["one", "one", "two", "two"])
    assert names(read(*paths, by=("arm", "file"))) == ["a/one", "b/one", "a/two", "b/two"]
    assert names(read(*paths, by=("arm",), where=(("file", "two"),))) == ["a", "b"]


def test_values_of_one_column_are_alternatives(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{name}.csv", ("arm,gpu_hours,reward", ARMS)) for name in ("one", "two")]
    by: Any = {"by": ("arm", "file")}
    assert names(read(*paths, **by, where=(("arm", "a"), ("arm", "b")))) == ["a/one", "b/one", "a/two", "b/two"]
    assert names(read(*paths, **by, where=(("arm", "a"), ("arm", "b"), ("file", "two")))) == ["a", "b"]
    assert names(read(*paths, **by, where=(("arm", "a"), ("arm", "b")), where_not=(("arm", "b"),))) == [
        "a/one",
        "a/two",
    ]


def test_same_seed_in_two_files_is_two_runs(tmp_path: Path) -> None:
    header, of_seed = "arm,seed,gpu_hours,reward", lambda seed: [("a", seed, n, 0.2 + 0.1 * n) for n in (1, 2)]
    paths = [write(tmp_path / f"{name}.csv", (header, of_seed(0))) for name in ("one", "two")]
    [series] = read(*paths, by=("arm",))
    assert (runs(series), series.facts) == (["one", "two"], ())
    write(paths[1], (header.replace("seed", "random_seed"), [*of_seed(0), *of_seed(1)]))
    [series] = read(*paths, by=("arm",))
    assert runs(series) == ["one", "two/0", "two/1"]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["a_seed0", "a_seed1", "b-seed-0", "b-seed-1"], {"a": ["a_seed0", "a_seed1"], "b": ["b-seed-0", "b-seed-1"]}),
        (["a/seed0/metrics", "a/seed1/metrics", "b/seed0/metrics"], {"a": ["a/seed0", "a/seed1"], "b/seed0": []}),
        (["c/seed=1", "c/seed=2"], {"c": ["c/seed=1", "c/seed=2"]}),
        (["a_seed1", "a_seed1_long"], {"a_seed1": [], "a_seed1_long": []}),
        (["reseed1", "reseed2"], {"reseed1": [], "reseed2": []}),
        (["d_seed0_lr1", "d_seed1_lr1"], {"d_lr1": ["d_seed0_lr1", "d_seed1_lr1"]}),
        (
            [f"{arm}/seed{seed}/log" for arm in "gh" for seed in (0, 1)],
            {f"{arm}/log": [f"{arm}/seed0/log", f"{arm}/seed1/log"] for arm in "gh"},
        ),
        (["f", "f_seed1", "f_seed2"], {"f": [], "f_seed1": [], "f_seed2": []}),
    ],
)
def test_names_that_differ_in_the_seed_are_runs_of_one_curve(
    tmp_path: Path, files: list[str], expected: dict[str, list[str]]
) -> None:
    paths = [write(tmp_path / f"{name}.csv", ("step,reward", STEPS)) for name in files]
    assert {series.name: runs(series) for series in read(*paths)} == expected
    assert len(read(*paths, by=("file",))) == len(files)
    rows = _labelled(*(name.removesuffix("/metrics") for name in files))
    found = read(write(tmp_path / "log.csv", ("run,step,reward", rows)))
    assert [runs(each) for each in found] == [*expected.values()]
    assert all(("seeds_by_name" in kinds(each)) == bool(runs(each)) for each in found)
    of_seeds = write(tmp_path / "log.csv", ("step,seed0,seed1", [(step, rate, rate) for step, rate in STEPS]))
    [series] = read(of_seeds, y="seed0,seed1")
    assert (series.name, runs(series)) == ("log", ["seed0", "seed1"])


def test_fact_about_many_runs_names_the_first(tmp_path: Path) -> None:
    [series] = read(*(write(tmp_path / f"a_seed{seed}.csv", ("step,reward", STEPS)) for seed in range(30)))
    [found] = series.facts
    note = text(found.kind, found.values)
    assert "a_seed0, a_seed1, " in note
    assert "a_seed11 and 18 more" in note


def test_seeds_with_other_columns_are_curves_of_their_own(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"a_seed{at}.csv", (f"step,{y}", STEPS)) for at, y in enumerate(("reward", "val/acc"))]
    assert [(each.name, each.y_label) for each in read(*paths)] == [("a_seed0", "reward"), ("a_seed1", "val/acc")]


def test_compute_of_a_filtered_row_is_kept(tmp_path: Path) -> None:
    rows = [{"step": n, "split": "train", "tokens": 10 * n} for n in (1, 2, 3)]
    rows += [{"step": n, "split": "eval", "acc": n / 10} for n in (1, 2, 3)]
    [series] = read(write(tmp_path / "log", rows), x="tokens", y="acc", where=(("split", "eval"),))
    assert (series.compute.tolist(), series.reward.tolist()) == ([10, 20, 30], [0.1, 0.2, 0.3])


def test_nan_counts_as_not_measured(tmp_path: Path) -> None:
    # As pandas writes a wandb history: NaN in every row that was logged by something else.
    rows = [{"step": n, "num_tokens": 100.0 * n, "reward": 0.2, "eval/acc": float("nan")} for n in range(1, 41)]
    rows += [{"step": n, "num_tokens": float("nan"), "reward": "NaN", "eval/acc": 0.01 * n} for n in range(4, 41, 4)]
    [series] = read(write(tmp_path / "history.jsonl", rows))
    assert (series.x_label, series.y_label) == ("num_tokens", "eval/acc")
    assert series.compute.tolist() == [100.0 * n for n in range(4, 41, 4)]


# Attempts

Rows = list[tuple[Any, ...]]
AXES = "step,gpu_hours,reward"


def _rows(steps: Sequence[int], *, shift: float = 0.0, spent: float = 0.0) -> Rows:
    return [(step, 100 * step - spent, round(0.3 + step / 100 + shift, 4)) for step in steps]


def _twice(rows: Rows) -> Rows:
    return [row for one in rows for row in (one, (*one[:2], round(one[2] + 0.1, 4)))]


FIRST, SECOND = _rows(range(1, 26)), _rows(range(16, 41), shift=0.001)
THIRD, LOST = _rows(range(11, 15), shift=0.002), _rows(range(16, 21), spent=-1000)
LATE, AGAIN = _rows([5, 6, 7, 4, 8, 9, 10, 11]), _rows(range(2, 40, 2)) + _rows([20], shift=0.002)
BETWEEN = _rows([1, 11, 21, 31, 26, 36, 46, 56, 66])
BESIDE = [row for step in range(1, 11) for row in ((step, 100 * step, 0.5), (step, 300 * step, 0.6))]
RESUMED, ALL = FIRST[:15] + SECOND, FIRST + SECOND

# Header, rows as they are written, options -> rows that count, and the kinds of facts
ATTEMPTS: dict[str, tuple[str, Rows, dict[str, Any], Rows, set[str]]] = {
    "newest first": (AXES, FIRST[::-1], {}, FIRST, set()),
    "resumed": (AXES, ALL, {}, RESUMED, {"superseded"}),
    "resumed twice": (AXES, ALL + THIRD, {}, FIRST[:10] + THIRD, {"superseded"}),
    "several rows per step": (AXES, _twice(ALL), {}, _twice(RESUMED), {"superseded"}),
    "no order": (AXES, random.Random(0).sample(ALL, len(ALL)), {}, ALL, set()),
    "one row late": (AXES, LATE, {}, LATE, set()),
    "the best step evaluated again": (AXES, AGAIN, {}, AGAIN, set()),
    "lost work counts as compute": (AXES, FIRST + LOST, {}, FIRST[:15] + LOST, {"superseded"}),
    "runs side by side": (AXES, BESIDE, {}, BESIDE, set()),
    "short attempts": (AXES, _rows([1, 2, 1, 2]) + FIRST, {}, FIRST, {"short_attempts"}),
    "resumed between logged steps": (AXES, BETWEEN, {}, BETWEEN[:3] + BETWEEN[4:], {"superseded"}),
    "beside wandb's step": ("train/global_step,gpu_hours,reward,_step", [(*row, n) for n, row in enumerate(ALL)], {},
                            RESUMED, {"superseded"}),
    "times do not separate runs": (f"{AXES},time", [(*row, f"12:{n:02}") for n, row in enumerate(ALL)], {}, RESUMED,
                                   {"superseded"}),
    "named runs": (f"{AXES},copy", [(*row, n // 25) for n, row in enumerate(ALL)], {"seed": "copy"}, ALL, set()),
    "no step": ("number,gpu_hours,reward", ALL, {}, ALL, set()),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTEMPTS)
def test_rows_of_the_model_that_is_gone_are_left_out(tmp_path: Path, name: str) -> None:
    header, written, options, counted, facts = ATTEMPTS[name]
    series = _only(tmp_path / "log.csv", header, written, **options)
    points = sorted(zip(series.compute.tolist(), series.reward.tolist(), strict=True))
    assert (points, set(kinds(series))) == (sorted(row[1:3] for row in counted), facts)


@pytest.mark.parametrize("later", [_rows(range(16, 41), spent=1500), _rows(range(26, 41), spent=2500)])
def test_compute_that_falls_gives_way_to_the_step(tmp_path: Path, later: Rows) -> None:
    path = write(tmp_path / "log.csv", (AXES, FIRST + later))
    [series] = read(path)
    assert (series.x_label, series.compute.tolist()) == ("step", list(range(1, 41)))


def test_words_that_explain_a_fall_are_curves(tmp_path: Path) -> None:
    rows = [(*row, "ab"[n >= 25]) for n, row in enumerate(ALL)]
    assert names(read(write(tmp_path / "log.csv", (f"{AXES},copy", rows)))) == ["a", "b"]


def _lines(folder: Path, steps: Sequence[int], **more: Any) -> Path:
    rows = [{"step": step, "eval/acc": round(0.3 + at / 1000, 4), **more} for at, step in enumerate(steps)]
    return write(folder / "log.jsonl", rows)


def test_attempts_from_the_beginning_are_separate_curves(tmp_path: Path) -> None:
    path = _lines(tmp_path, [*range(1, 11), *range(1, 21)], **{"time/step": 3600.0})
    first, second = read(path)
    assert (first.name, second.name, kinds(second)) == ("attempt 1", "attempt 2", ["attempts"])
    assert (first.compute.tolist(), second.compute.tolist()) == (list(range(1, 11)), list(range(1, 21)))
    [only] = read(path, where=(("attempt", "2"),))
    assert only.reward.tolist() == second.reward.tolist()
    assert runs(read(path, seed="attempt")[0]) == ["1", "2"]


def test_resumed_run_that_evaluates_step_0_again_is_one_curve(tmp_path: Path) -> None:
    [series] = read(_lines(tmp_path, [*range(26), 0, *range(16, 41)]))
    assert series.compute.tolist() == list(range(1, 41))
    assert series.reward[15:].tolist() == [round(0.3 + at / 1000, 4) for at in range(27, 52)]
    assert set(kinds(series)) == {"superseded", "start_at_zero"}


def test_stacked_runs_that_differ_in_a_number(tmp_path: Path) -> None:
    rows = [{"step": step, "rho": rho, "reward": 0.4} for rho in (0.7, 0.9) for step in range(1, 11)]
    path = write(tmp_path / "log.jsonl", rows)
    for named in (read(path), read(path, by=("rho",))):
        assert names(named) == ["rho=0.7", "rho=0.9"]
    assert kinds(named[0]) == []


def test_cut_line_of_a_killed_writer_is_left_out(tmp_path: Path) -> None:
    path = _lines(tmp_path, range(1, 11))
    text = path.read_text()
    write(path, text + '{"step": 11, "eval/a' + text[text.index('{"step": 8') :].replace("0.30", "0.40"))
    [series] = read(path)
    assert (series.compute.tolist(), series.reward[7]) == (list(range(1, 11)), pytest.approx(0.407))
    assert set(kinds(series)) == {"cut_lines", "superseded"}


# Run folders


def test_run_folder_starts_at_compute_zero(tmp_path: Path) -> None:
    folder = _run(tmp_path / "cispo", _evals(), seed=3)
    [series] = read(folder)
    assert (series.name, series.compute.tolist()) == ("cispo", [2, 4, 6])
    assert (series.start, series.start_sd) == (0.2, pytest.approx(0.02))
    assert series.evaluation is not None
    assert series.evaluation.tolist() == ["ab@10", "ab@20", "ab@30"]
    [given_start] = read(folder, start=0.25)
    assert (given_start.start, given_start.start_sd, given_start.compute.tolist()) == (0.25, 0.0, [2, 4, 6])
    [first] = read(folder, start="first")
    assert _as_dict(first) == _as_dict(series)
    _run(folder, [{name: cell for name, cell in row.items() if name != "num_samples"} for row in _evals()])
    assert read(folder)[0].start_sd is None


def test_run_folders_are_merged_only_when_asked(tmp_path: Path) -> None:
    folders = [_run(tmp_path / f"cispo-{seed}", _evals(shift=0.1 * seed), seed=seed) for seed in (0, 1)]
    assert names(read(*folders)) == ["cispo-0", "cispo-1"]
    [series] = read(*folders, by=("set",), seed="seed")
    assert (series.name, runs(series), series.start) == ("val", ["0", "1"], pytest.approx(0.25))


def test_evaluation_sets_are_separate_curves(tmp_path: Path) -> None:
    folder = _run(tmp_path / "cispo", _evals("val") + _evals("test", 0.1))
    assert names(read(folder)) == names(read(folder, by=("file",))) == ["cispo/val", "cispo/test"]
    assert names(read(folder, by=("set",))) == ["val", "test"]
    assert names(read(folder, where=(("set", "test"),))) == ["cispo"]


def test_uneven_time_is_fitted_over_flops_and_compared_over_hours(tmp_path: Path) -> None:
    even, uneven = write_run(tmp_path / "even"), write_run(tmp_path / "uneven")
    rows = store.read_evals(uneven)
    # Eight times as long per step in the second half.
    write(
        uneven / "evals.jsonl",
        [row | {"gpu_hours": row["gpu_hours"] + 0.07 * max(row["step"] - 80, 0)} for row in rows],
    )
    found = [(one.x_label, kinds(one)) for one in (*read(uneven), *read(uneven, x="gpu_hours"), *read(even))]
    on_cpu = ["cpu_time"]
    assert found == [("flops", ["counted_in_flops", *on_cpu]), ("gpu_hours", on_cpu), ("gpu_hours", on_cpu)]
    assert [one.x_label for one in read(uneven, even)] == ["gpu_hours"] * 2


@pytest.mark.parametrize(("is_shared", "axis"), [(True, "flops"), (False, "gpu_hours")])
def test_study_whose_runs_shared_a_device_is_fitted_over_flops(tmp_path: Path, is_shared: bool, axis: str) -> None:
    folder = write_study(tmp_path / "study", shared_device=is_shared)
    assert {curve.x_label for curve in read(folder)} == {axis}
    assert {curve.x_label for curve in read(folder, x="gpu_hours")} == {"gpu_hours"}
    assert {kind for curve in read(folder) for kind in kinds(curve)} >= ({"shared_hours"} if is_shared else set())
    assert {curve.axis for curve in build_report([folder], Selection(), FitOptions()).curves} == {axis}


def test_disagreement_of_hours_and_flops() -> None:
    # Ten of twenty steps take eight times as long, since another process has the machine.
    busy = [0.1 * place for place in range(11)] + [1.0 + 0.8 * place for place in range(1, 11)]
    hours, flops = np.array(busy), 1e12 * np.arange(len(busy), dtype=np.float64)
    assert UNEVEN_TIME < disagreement(hours, flops) == pytest.approx(0.5 - 1 / 9)
    assert disagreement(hours[:11], flops[:11]) == pytest.approx(0)
    for unknown in ([], [np.nan, np.nan], [0.0]):
        assert disagreement(np.array(unknown), np.full(len(unknown), 3.0, dtype=np.float64)) == 0


# The start

ROWS, EARLY, LATER = [(0, 0.2), (1, 0.3), (2, 0.4)], [(0.1, 0.3), (2, 0.4), (10, 0.6)], [(1, 0.3), (2, 0.4), (10, 0.6)]
COUNTED = [(0, 0, 50), (1, 0.1, 50), (2, 0.2, 50)]
BINOMIAL = (0.02 * 0.98 / 50) ** 0.5


def _rising(num: int, spread: float = 0.001) -> Rows:
    return [(compute, 0.2 + 0.1 * compute + spread * seed, seed) for seed in range(num) for compute in (0, 1, 2)]


# header, rows, options -> start, its sd, the compute that is fitted, kinds of facts
STARTS: dict[str, tuple[str, list[Any], dict[str, Any], tuple[Any, ...]]] = {
    "at compute 0": (PLAIN, ROWS, {}, (0.2, None, [1, 2], ["start_at_zero"])),
    "first row": (PLAIN, ROWS, {"start": "first"}, (0.2, None, [1, 2], [])),
    "given": (PLAIN, ROWS[1:], {"start": 0.2}, (0.2, 0.0, [1, 2], [])),
    "given beside compute 0": (PLAIN, ROWS, {"start": 0.25}, (0.25, 0.0, [1, 2], [])),
    "step below 0": ("step,reward", [(-1, 0.2), *ROWS[1:]], {}, (0.2, None, [1, 2], ["start_at_zero"])),
    "zero with a count": (f"{PLAIN},num_samples", COUNTED, {"start": "first"}, (0, BINOMIAL, [1, 2], [])),
    "twice": (PLAIN, [(0, 0.3), *ROWS], {"start": "first"}, (0.25, None, [1, 2], ["start_at_zero"])),
    "late": (PLAIN, LATER, {"start": "first"}, (None, 0.0, [1, 2, 10], ["start_is_late"])),
    "within a hundredth": (PLAIN, EARLY, {"start": "first"}, (0.3, None, [2, 10], [])),
    # Fewer than four say little of their own spread, and the same number in every run is one evaluation.
    "of three runs": (f"{PLAIN},seed", _rising(3), {"start": "first", "seed": "seed"}, (0.201, None, [1, 2] * 3, [])),
    "of four runs": (f"{PLAIN},seed", _rising(4), {"start": "first", "seed": "seed"},
                     (0.2015, 0.001 * (5 / 3) ** 0.5 / 2, [1, 2] * 4, [])),
    "one of five runs": (f"{PLAIN},seed", _rising(5, 0), {"start": "first", "seed": "seed"},
                         (0.2, None, [1, 2] * 5, [])),
    "of two runs with counts": (f"{PLAIN},seed,num_samples", [(*row, 100) for row in _rising(2, 0.1)],
                                {"start": "first", "seed": "seed"},
                                (0.25, math.sqrt((0.2 * 0.8 + 0.3 * 0.7) / 100) / 2, [1, 2] * 2, [])),
}  # fmt: skip


@pytest.mark.parametrize("name", STARTS)
def test_start_is_found(tmp_path: Path, name: str) -> None:
    header, rows, options, expected = STARTS[name]
    series = _only(tmp_path / "a.csv", header, rows, **options)
    found = (series.start, series.start_sd, series.compute.tolist(), kinds(series))
    assert found == tuple(pytest.approx(value) if isinstance(value, float) else value for value in expected)


@pytest.mark.parametrize("count", ["inf", "1e300"])
def test_counts_beyond_integers_are_not_known(tmp_path: Path, count: str) -> None:
    rows = [(at, 0.1 * at, count if at == 2 else 400) for at in range(1, 5)]
    assert _only(tmp_path / "a.csv", "gpu_hours,reward,num_samples", rows).num_samples is None


# The scale: shares, per cent only for what is named as a rate, everything else as it is


@pytest.mark.parametrize(
    "column, rewards, scale, facts",
    [
        ("reward", (0.0, 0.5, 1.0), "1", []),
        ("reward", (0.4, 1.1, 1.5), "none", ["own_scale"]),
        ("reward", (-0.9, 0.1, 0.6), "none", ["own_scale"]),
        ("reward", (-150.0, 3.0, 150.0), "none", ["own_scale"]),
        ("reward", (12.0, 30.0, 61.0), "none", ["own_scale"]),
        ("pass_rate", (20.0, 50.0, 67.0), "100", ["percent"]),
        ("val/accuracy", (2.0, 5.0, 9.0), "100", ["percent"]),
        ("eval_win_rate_percent", (0.5, 30.0, 90.0), "100", ["percent"]),
        ("eval/aime/pass@1", (0.9, 3.0, 6.5), "100", ["percent"]),
        ("pass_rate", (0.4, 1.1, 1.5), "none", ["own_scale"]),
    ],
)
def test_scale_fits_the_values(
    tmp_path: Path, column: str, rewards: tuple[float, ...], scale: YScale, facts: list[str]
) -> None:
    series = _only(tmp_path / "log.csv", f"tokens,{column}", list(enumerate(rewards, start=1)))
    assert (series.y_scale, series.bounds, kinds(series)) == (scale, SCALES[scale], facts)
    assert series.reward.tolist() == list(rewards)


def _written(path: Path, unit: float = 1.0, low: float = 0.0) -> Path:
    """A sigmoid from a share of 0.2 to one of 0.7, in another unit."""
    rows = [(step, low + unit * (0.2 + 0.5 / (1 + 10 / step) + 0.004 * (-1) ** step)) for step in range(1, 61)]
    return write(path, ("step,pass_rate", rows))


def test_answers_have_the_unit_of_the_log(tmp_path: Path) -> None:
    share = scalerl.read(_written(tmp_path / "share.csv"), start=0.2)
    percent = scalerl.read(_written(tmp_path / "percent.csv", 100), start=20)
    signed = scalerl.read(_written(tmp_path / "pm1.csv", 2, -1), start=-0.6, y_scale="pm1")
    [at], [percent_at], [signed_at] = (runs.forecast(100).curves for runs in (share, percent, signed))
    for key, reward in (("ceiling", lambda curve: curve.ceiling), ("at", lambda curve: curve.at[0].reward)):
        for end in ("value", "low", "high"):
            given = reward(at)[end]
            assert reward(percent_at)[end] == pytest.approx(100 * given, rel=1e-6), key
            assert reward(signed_at)[end] == pytest.approx(2 * given - 1, rel=1e-6), key
    assert percent_at.state == signed_at.state == at.state
    assert f"{percent_at.ceiling.value:.1f} [" in repr(percent.fit())
    assert percent.fit(form="log-linear").curves[0].ceiling.value == 100
    grids = [(share, (0.68, 0.72)), (percent, (68, 72))]
    paper, percent_paper = (runs.fit(method="paper", ceiling=ends).curves[0].ceiling.value for runs, ends in grids)
    assert percent_paper == pytest.approx(100 * paper)


def test_curves_in_shares_and_in_per_cent_are_compared_as_shares(tmp_path: Path) -> None:
    first, second = read(_written(tmp_path / "a.csv"), _written(tmp_path / "b.csv", 100), start=0.02)
    assert (second.y_scale, second.reward.tolist()) == ("1", pytest.approx(first.reward.tolist()))
    assert (first.start, second.start) == (0.02, 0.02)


def test_column_has_one_unit_for_all_its_arms(tmp_path: Path) -> None:
    rows = [(arm, step, top * step / 20) for arm, top in (("good", 58.0), ("bad", 0.9)) for step in range(1, 21)]
    assert [series.y_scale for series in read(write(tmp_path / "a.csv", ("arm,step,pass_rate", rows)))] == ["100"] * 2


# Names


@pytest.mark.parametrize(
    "paths, expected",
    [
        (["a/metrics.jsonl", "b/metrics.jsonl"], ["a", "b"]),
        (["x/a/metrics.jsonl", "y/a/metrics.jsonl"], ["x/a", "y/a"]),
        (["out/checkpoint-30/trainer_state.json"], ["out"]),
        (["a/metrics.jsonl", "a/trainer_state.json"], ["metrics", "trainer_state"]),
        (["a/metrics.jsonl", "a/other.csv"], ["a", "other"]),
        (["x/wandb/run-1/files/output.log"], ["run-1"]),
        (["a/log.csv", "b/log.csv"], ["a/log", "b/log"]),
        (["x/run/log.csv", "y/run/log.csv", "y/other.csv", "z/log.csv"], ["x/run/log", "y/run/log", "other", "z/log"]),
        (["y/other.csv", "y/other.csv"], ["other", "other (2)"]),
        (["y/other.csv", "y/other.jsonl"], ["other.csv", "other.jsonl"]),
    ],
)
def test_generic_file_names_give_way_to_the_folder(tmp_path: Path, paths: list[str], expected: list[str]) -> None:
    assert file_names([tmp_path / path for path in paths]) == expected
    assert file_names([Path("/seed0"), Path("/seed1")]) == ["seed0", "seed1"]


LONG = "Qwen2.5-0.5B-Instruct-GSM8K-CRPO-sp-p1-b8-gamma2.0-"


@pytest.mark.parametrize(
    "given_names, shown",
    [
        ([f"{LONG}lam0.1-01161659", f"{LONG}lam0.5-01161659"], ["lam0.1", "lam0.5"]),
        (["cispo-seed0", "cispo-seed1"], ["cispo-seed0", "cispo-seed1"]),
        ([f"{LONG}7", f"{LONG}8"], [f"{LONG}7", f"{LONG}8"]),  # a bare number would say nothing
        ([f"{LONG.upper()}a", f"{LONG}no-branch"], ["a", "no-branch"]),
    ],
)
def test_long_names_lose_what_they_share(given_names: list[str], shown: list[str]) -> None:
    assert curve_names([(("run", name),) for name in given_names]) == shown


def test_labels_name_files(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{name}.csv", (PLAIN, ROWS)) for name in ("one", "two")]
    assert names(read(*paths, labels=("first", "second"))) == ["first", "second"]
    assert "the labels only do not name the curves one, two: give --label once" in fault(*paths, labels=("only",))
    assert "each another" in fault(*paths, labels=("same", "same"))


# Faults

CHOSEN, ROW = "arm,gpu_hours,pass_rate", [("a", 1, 0.5)]
# header, rows, options -> a part of the sentence
FAULTS: list[tuple[str, list[Any], dict[str, Any], str]] = [
    # of a file
    (CHOSEN, ROW, {"x": "gpu_hour"}, "'gpu_hour' (--x): did you mean 'gpu_hours'? It has"),
    (CHOSEN, ROW, {"y": "rate"}, "(--y): did you mean 'pass_rate'? It has pass_rate, arm, gpu_hours, file"),
    (CHOSEN, ROW, {"seed": "arms"}, "'arms' (--seed): did you mean 'arm'?"),
    (CHOSEN, ROW, {"by": ("zzz",)}, "(--by): it has arm, gpu_hours, pass_rate, file"),
    (CHOSEN, ROW, {"where": (("kind", "a"),)}, "'kind' (--where)"),
    (CHOSEN, ROW, {"holdout": ("kind", "a")}, "'kind' (--holdout)"),
    ("a,b", [(1, 0.5)], {}, "reward: name it with --y; it has a, b."),
    ("a,reward", [("x", 0.5)], {}, "compute: name it with --x; it has a, reward."),
    ("a,b", [(1, 0.5)], {"x": "a"}, "reward: name it with --y"),
    ("step,reward,step_time", [(1, 0.5, 3600)], {"x": "gpu_hours"}, "--gpus N builds it from the log's clock"),
    ("step,reward", [(1, 0.5)], {"gpus": 8}, "--gpus 8 needs a clock"),
    *[(AXES, FIRST, {"gpus": gpus}, "is not a number of GPUs") for gpus in (0, -1, float("nan"))],
    (CHOSEN, ARMS, {"where": (("arm", "c"),)}, "--where arm=c matches no row"),
    (CHOSEN, ARMS, {"where": (("arm", "c"),)}, "the values there are a, b."),
    (PLAIN, [(1, ""), ("", 0.5)], {}, "1 have a number for 'gpu_hours' and 1 have a number for 'reward', but"),
    (CHOSEN, [("a", 1, "x"), ("b", 1, "inf")], {"by": ("arm",)}, "no usable curve among 2; the first, a:"),
    # of a curve
    (PLAIN, [(1, 39.9)], {"start": -1, "y_scale": "100"}, "--start -1 is outside [0, 100]"),
    (PLAIN, [(1, "-inf")], {}, "('-inf' at line 2)"),
    (PLAIN, [(1, "oops"), (2, "")], {}, "('oops' at line 2)"),
    (PLAIN, [(-3, 0.5), (1, 0.6)], {"start": "first"}, "'gpu_hours' is -3 at line 2"),
    (PLAIN, [(0, 0.5), (1, 0.6), (-3, 0.5)], {}, "'gpu_hours' is -3 at line 4"),
    (PLAIN, [(1, -0.5), (2, 0.6)], {"y_scale": "1"}, "'reward' is -0.5 at line 2, outside [0, 1] of --y-scale 1"),
    (PLAIN, [(1, 0.5), (2, 300)], {"y_scale": "100"}, "'reward' is 300 at line 3, outside [0, 100] of --y-scale 100"),
    (PLAIN, [(1, 0.5)], {"holdout": ("gpu_hours", "1")}, "log has no point to fit"),
    (PLAIN, [(0, 0.5)], {"start": "first"}, "log has no point to fit"),
]  # fmt: skip


@pytest.mark.parametrize("header, rows, options, sentence", FAULTS)
def test_fault_names_value_and_option(
    tmp_path: Path, header: str, rows: list[Any], options: dict[str, Any], sentence: str
) -> None:
    assert sentence in fault(write(tmp_path / "log.csv", (header, rows)), **options)


def test_pooled_files_must_share_columns(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{x}.csv", (f"arm,{x},reward", [("a", 1, 0.5)])) for x in ("gpu_hours", "flops")]
    assert "different columns: choose them with --x and --y" in fault(*paths, by=("arm",))
    assert "no file was given" in fault()


@pytest.mark.parametrize("header", ["loss,reward", "step,loss", "step,reward"])
def test_file_that_makes_no_curve_does_not_stop_the_others(tmp_path: Path, header: str) -> None:
    good = write(tmp_path / "good.csv", ("step,reward", STEPS))
    bad = write(tmp_path / "bad.csv", (header, [(1, ""), ("", 0.5)]))
    alone = fault(bad)
    first, second = sorted(read(bad, good), key=lambda series: series.problem is not None)
    assert (first.name, first.problem, len(first.compute)) == ("good", None, len(STEPS))
    assert (second.name, second.problem, second.x_label, second.y_label) == ("bad", alone, "step", "reward")


@pytest.mark.parametrize("bad", ["inf", "oops"])
def test_fault_of_one_of_several_curves_is_its_problem(tmp_path: Path, bad: str) -> None:
    path = write(tmp_path / "log.csv", ("arm,gpu_hours,reward", [*ARMS, ("c", 1, bad)]))
    first, second, third = read(path, by=("arm",), y="reward")
    assert (first.problem, second.problem, third.name, third.compute.size) == (None, None, "c", 0)
    assert f"({bad!r} at line 6)" in (third.problem or "")


def test_row_without_a_number_is_not_measured(tmp_path: Path) -> None:
    rows = [(1, 0.3), (2, "oops"), (3, "inf"), (4, 0.5), (5, 0.6), ("inf", 0.7)]
    [series] = read(write(tmp_path / "log.csv", ("step,reward", rows)))
    assert series.compute.tolist() == [1, 4, 5]


def test_time_of_day_as_compute_is_read_as_hours(tmp_path: Path) -> None:
    rows = [(1.7e9 + 3600 * at, 0.1 + 0.01 * at) for at in range(8)]
    [series] = read(write(tmp_path / "log.csv", ("timestamp,reward", rows)), x="timestamp", start="fit")
    assert (series.x_label, series.compute.tolist()) == ("hours", list(range(1, 9)))


# Order and format

_ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.integers(min_value=0, max_value=2),
        st.floats(min_value=0.5, max_value=1e6),
        st.floats(min_value=0, max_value=1),
        st.integers(min_value=1, max_value=1000),
    ),
    min_size=1,
    max_size=12,
)
_NAMES = ("arm", "seed", "gpu_hours", "reward", "num_samples")


def _by_name(path: Path, start: str | None) -> dict[str, dict[str, Any]]:
    """Rows equal in run, compute and reward may differ in their number of samples, and problems name lines."""
    try:
        curves = [_as_dict(series) for series in read(path, start=start, by=("arm",), seed="seed")]
    except InputError:  # --start first may leave nothing
        return {}
    same = {"num_samples": lambda counts: sorted(counts or []), "problem": lambda problem: problem is None}
    return {one["name"]: one | {key: make(one[key]) for key, make in same.items()} for one in curves}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=_ROWS, data=st.data(), start=st.sampled_from([None, "first"]))
def test_row_order_repeated_columns_and_format_do_not_matter(
    tmp_path: Path, rows: list[tuple[Any, ...]], data: st.DataObject, start: str | None
) -> None:
    shuffled = data.draw(st.permutations(rows))
    twice = data.draw(st.sampled_from(range(len(_NAMES))))
    plain = write(tmp_path / "one/log.csv", (",".join(_NAMES), rows))
    repeated = [(*row, row[twice]) for row in shuffled]
    other = write(tmp_path / "two/log.csv", (",".join((*_NAMES, _NAMES[twice])), repeated))
    lines = write(tmp_path / "log.jsonl", [dict(zip(_NAMES, row, strict=True)) for row in rows])
    assert _by_name(plain, start) == _by_name(other, start) == _by_name(lines, start)
