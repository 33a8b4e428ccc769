"""Which rows make which curve, and the message for each fault; row order and file format do not matter."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import scalerl
from scalerl.errors import InputError
from scalerl.logs.formats import read_table
from scalerl.logs.series import Selection, Series, series_from
from scalerl.logs.units import SCALES, YScale

ARMS = [("a", 1, 0.3), ("a", 2, 0.4), ("b", 1, 0.5), ("b", 2, 0.6)]


def _csv(path: Path, header: str, rows: Sequence[Sequence[Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(header + "\n" + "".join(",".join(str(cell) for cell in row) + "\n" for row in rows))
    return path


def _run(folder: Path, rows: Sequence[dict[str, Any]], **recipe: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "recipe.json").write_text(json.dumps(recipe))
    (folder / "evals.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def _evals(set_name: str = "val", shift: float = 0.0) -> list[dict[str, Any]]:
    return [
        {"step": 10 * at, "attempt": 1, "set": set_name, "gpu_hours": 2.0 * at, "reward": 0.2 + 0.1 * at + shift}
        | {"num_samples": 400, "prompts_hash": "ab"}
        for at in range(4)
    ]


def _select(*paths: Path, **options: Any) -> list[Series]:
    return series_from([read_table(path) for path in paths], Selection(**options))


def _only(path: Path, header: str, rows: Sequence[Sequence[Any]], **options: Any) -> Series:
    [series] = _select(_csv(path, header, rows), **options)
    return series


def _fault(*paths: Path, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        _select(*paths, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def _as_dict(series: Series) -> dict[str, Any]:
    fields = {name: getattr(series, name) for name in Series.__slots__}
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in fields.items()}


# Curves and runs

PLAIN = "gpu_hours,reward"
SIZES = [(arm, size, compute, reward) for arm, compute, reward in ARMS for size in (7, 70.0)]
LR = [(1, "a", 1, 0.1), (2, "a", 2, 0.2), (1, "b", 3, 0.3)]
WANDB = "Step,s0 - val/reward,s0 - val/reward__MIN,s1 - val/reward,s1 - val/reward__MIN"
STEPS = [(step, round(0.1 + 0.013 * step, 3)) for step in range(1, 9)]
UP = [step for step, _ in STEPS]


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
    "seeds": ("seed,gpu_hours,reward", _labelled(0, 1), {}, [("log", 2 * UP, 2)], ["runs_by_column"]),
    "seeds, named": ("seed,gpu_hours,reward", _labelled(0, 1), {"seed": "seed"}, [("log", 2 * UP, 2)], []),
    "one seed": ("seed,gpu_hours,reward", _labelled(7), {}, [("log", UP, 1)], []),
    "a seed per row": ("gpu_hours,reward,seed", [(*row, 100 + row[0]) for row in STEPS], {}, [("log", UP, 1)],
                       ["seed_has_too_many_values"]),
    "runs": ("run,step,reward", _labelled("new", "base"), {}, [("new", UP, 1), ("base", UP, 1)], ["runs_apart"]),
    "runs, named": ("run,step,reward", _labelled("new", "base"), {"seed": "run"}, [("log", 2 * UP, 2)], []),
    "an id per attempt": ("run_id,step,reward", [("x1" if step < 5 else "x2", step, r) for step, r in STEPS], {},
                          [("log", UP, 1)], ["runs_joined"]),
    "ids that overlap": ("run_id,step,reward", [*_labelled("a"), *_labelled("b", steps=STEPS[5:]), ("b", 9, 0.5)], {},
                         [("log", [*UP, 9], 1)], ["runs_joined", "superseded"]),
    "a run without a name": ("run,step,reward", _labelled("new", "base", ""), {}, [("log", sorted(3 * UP), 1)],
                             ["mixed"]),
    "runs with seeds": ("run,seed,step,reward", _labelled(("r0", 0), ("r1", 1)), {}, [("log", 2 * UP, 2)],
                        ["runs_by_column"]),
    "clock from the first row": ("step,elapsed_s,reward", [(s, 360 * (s - 10), s / 100) for s in range(10, 60, 10)],
                                 {}, [("log", [1, 2, 3, 4, 5], 1)], []),
    "written twice": ("step,reward", [row for row in STEPS for _ in range(2)], {}, [("log", UP, 1)],
                      ["repeated_rows"]),
    "two rows per step": ("step,reward", [(s, r + shift) for s, r in STEPS for shift in (0, 0.002)], {},
                          [("log", sorted(2 * UP), 1)], ["several_per_compute"]),
    "one of two held out": ("split,step,reward", _labelled("train", "test"), {"holdout": ("split", "test")},
                            [("log", UP, 1)], []),
    "single answers": ("step,reward", [(step, float(at < step)) for step in UP for at in range(8)], {},
                       [("log", sorted(8 * UP), 1)], []),
}  # fmt: skip


@pytest.mark.parametrize("name", CURVES)
def test_rows_make_curves(tmp_path: Path, name: str) -> None:
    header, rows, options, expected, kinds = CURVES[name]
    curves = _select(_csv(tmp_path / "log.csv", header, rows), **options)
    found = [(one.name, one.compute.tolist(), 1 if one.run is None else len(set(one.run))) for one in curves]
    assert found == [(label, pytest.approx(compute), num) for label, compute, num in expected]
    assert [fact.kind for fact in curves[0].facts] == kinds


def test_rewards_follow_their_compute(tmp_path: Path) -> None:
    rows = [("train", 1, 0.3), ("late", 5, 0.6), ("train", 2, 1.00000002), ("late", 4, -1e-8)]
    series = _only(tmp_path / "log.csv", "kind,gpu_hours,reward", rows, holdout=("kind", "late"))
    assert (series.compute.tolist(), series.reward.tolist()) == ([1, 2], [0.3, 1.0])
    assert (series.holdout_compute.tolist(), series.holdout_reward.tolist()) == ([4, 5], [0.0, 0.6])
    assert (series.compute.dtype, series.num_samples, series.evaluation, series.problem) == (np.float64, *[None] * 3)


def test_by_pools_files_into_runs_of_a_curve(tmp_path: Path) -> None:
    paths = [_csv(tmp_path / f"{name}.csv", "arm,gpu_hours,reward", ARMS) for name in ("one", "two")]
    first, _ = _select(*paths, by=("arm",))
    assert first.run is not None
    assert (first.name, first.run.tolist()) == ("a", ["one", "one", "two", "two"])
    assert [series.name for series in _select(*paths, by=("arm", "file"))] == ["a/one", "b/one", "a/two", "b/two"]
    assert [series.name for series in _select(*paths, by=("arm",), where=(("file", "two"),))] == ["a", "b"]


def test_compute_of_a_filtered_row_is_kept(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []
    for step in (1, 2, 3):
        rows += [
            {"step": step, "split": "train", "tokens": 10 * step},
            {"step": step, "split": "eval", "acc": step / 10},
        ]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    [series] = _select(path, x="tokens", y="acc", where=(("split", "eval"),))
    assert (series.compute.tolist(), series.reward.tolist()) == ([10, 20, 30], [0.1, 0.2, 0.3])


def test_rows_without_a_reward_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1, "loss": 1}\n{"step": 1, "reward": null}\n{"step": 2, "reward": 0.5}\n')
    [series] = _select(path)
    assert series.compute.tolist() == [2]


# Scales and starts


def test_start_first_takes_one_row_of_each_run(tmp_path: Path) -> None:
    rows = [(seed, compute, 0.2 + 0.1 * compute + 0.1 * seed, 100) for compute in (0, 1, 2) for seed in (0, 1)]
    path = _csv(tmp_path / "log.csv", "seed,gpu_hours,reward,num_samples", rows)
    [series] = _select(path, start="first", seed="seed")
    assert series.start == pytest.approx(0.25)
    assert series.start_sd == pytest.approx(math.sqrt((0.2 * 0.8 + 0.3 * 0.7) / 100) / 2)
    assert series.compute.tolist() == [1, 2, 1, 2]
    assert series.num_samples is not None
    assert series.num_samples.tolist() == [100] * 4
    path = _csv(
        tmp_path / "log.csv", "note,gpu_hours,reward", [(note, compute, 0.5) for compute in (0, 1) for note in "ab"]
    )
    [series] = _select(path, start="first")
    assert [fact.kind for fact in series.facts] == ["start_at_zero"]


def test_run_folder_starts_at_compute_zero(tmp_path: Path) -> None:
    folder = _run(tmp_path / "cispo", _evals(), seed=3)
    [series] = _select(folder)
    assert (series.name, series.compute.tolist()) == ("cispo", [2, 4, 6])
    assert (series.start, series.start_sd) == (0.2, pytest.approx(0.02))
    assert series.evaluation is not None
    assert series.evaluation.tolist() == ["ab@10", "ab@20", "ab@30"]
    [given_start] = _select(folder, start=0.25)
    assert (given_start.start, given_start.start_sd, given_start.compute.tolist()) == (0.25, 0.0, [2, 4, 6])
    [first] = _select(folder, start="first")
    assert _as_dict(first) == _as_dict(series)


def test_run_folders_are_merged_only_when_asked(tmp_path: Path) -> None:
    folders = [_run(tmp_path / f"cispo-{seed}", _evals(shift=0.1 * seed), seed=seed) for seed in (0, 1)]
    assert [series.name for series in _select(*folders)] == ["cispo-0", "cispo-1"]
    [series] = _select(*folders, by=("set",), seed="seed")
    assert series.run is not None
    assert (series.name, series.run.tolist()) == ("val", ["0"] * 3 + ["1"] * 3)
    assert series.start == pytest.approx(0.25)


def test_evaluation_sets_are_separate_curves(tmp_path: Path) -> None:
    folder = _run(tmp_path / "cispo", _evals("val") + _evals("test", 0.1))
    assert [series.name for series in _select(folder)] == ["cispo/val", "cispo/test"]
    assert [series.name for series in _select(folder, by=("set",))] == ["val", "test"]
    assert [series.name for series in _select(folder, by=("file",))] == ["cispo/val", "cispo/test"]
    assert [series.name for series in _select(folder, where=(("set", "test"),))] == ["cispo"]


def _rising(seed: int, computes: Sequence[float] = (0, 1, 2, 3)) -> list[tuple[int, float, float]]:
    return [(seed, compute, 0.2 + 0.1 * compute + 0.001 * seed) for compute in computes]


ROWS, EARLY, LATE = [(0, 0.2), (1, 0.3), (2, 0.4)], [(0.1, 0.3), (2, 0.4), (10, 0.6)], [(1, 0.3), (2, 0.4), (10, 0.6)]
COUNTED = [(0, 0, 50), (1, 0.1, 50), (2, 0.2, 50)]
BINOMIAL = (0.02 * 0.98 / 50) ** 0.5

# header, rows, options -> start, its sd, the compute that is fitted, kinds of facts
STARTS: dict[str, tuple[str, list[Any], dict[str, Any], tuple[Any, ...]]] = {
    "at compute 0": ("gpu_hours", ROWS, {}, (0.2, None, [1, 2], ["start_at_zero"])),
    "first row": ("gpu_hours", ROWS, {"start": "first"}, (0.2, None, [1, 2], [])),
    "given": ("gpu_hours", ROWS[1:], {"start": 0.2}, (0.2, 0.0, [1, 2], [])),
    "given beside compute 0": ("gpu_hours", ROWS, {"start": 0.25}, (0.25, 0.0, [1, 2], [])),
    "step below 0": ("step", [(-1, 0.2), *ROWS[1:]], {}, (0.2, None, [1, 2], ["start_at_zero"])),
    "zero with a count": ("gpu_hours", COUNTED, {"start": "first"}, (0, pytest.approx(BINOMIAL), [1, 2], [])),
    "twice": ("gpu_hours", [(0, 0.3), *ROWS], {"start": "first"}, (0.25, None, [1, 2], ["start_at_zero"])),
    "late": ("gpu_hours", LATE, {"start": "first"}, (None, 0.0, [1, 2, 10], ["start_is_late"])),
    "within a hundredth": ("gpu_hours", EARLY, {"start": "first"}, (0.3, None, [2, 10], [])),
}  # fmt: skip


@pytest.mark.parametrize("name", STARTS)
def test_start_is_found(tmp_path: Path, name: str) -> None:
    x, rows, options, expected = STARTS[name]
    series = _only(tmp_path / "a.csv", f"{x},reward" + ",num_samples" * (len(rows[0]) > 2), rows, **options)
    kinds = [fact.kind for fact in series.facts]
    assert (series.start, series.start_sd, series.compute.tolist(), kinds) == expected


@pytest.mark.parametrize("count", ["inf", "1e300"])
def test_counts_beyond_integers_are_not_known(tmp_path: Path, count: str) -> None:
    rows = [(at, 0.1 * at, count if at == 2 else 400) for at in range(1, 5)]
    assert _only(tmp_path / "a.csv", "gpu_hours,reward,num_samples", rows).num_samples is None


def test_start_without_sample_counts_is_noisy(tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text("{}")
    rows = [f'{{"step": {n}, "set": "val", "gpu_hours": {n}, "reward": {0.2 + 0.1 * n}}}\n' for n in range(4)]
    (tmp_path / "evals.jsonl").write_text("".join(rows))
    [series] = _select(tmp_path)
    assert (series.start, series.start_sd) == (0.2, None)


def test_spread_of_the_start_needs_many_starts(tmp_path: Path) -> None:
    for runs, expected in ((3, None), (4, pytest.approx(0.001 * (5 / 3) ** 0.5 / 2))):
        rows = [row for seed in range(runs) for row in _rising(seed)]
        series = _only(tmp_path / "a.csv", "seed,gpu_hours,reward", rows, start="first", seed="seed")
        assert series.start == pytest.approx(0.2 + 0.001 * (runs - 1) / 2)
        assert series.start_sd == expected


def test_evaluation_copied_into_every_run_counts_once(tmp_path: Path) -> None:
    rows = [(seed, compute, 0.1 + 0.1 * compute) for seed in range(5) for compute in range(4)]
    assert _only(tmp_path / "a.csv", "seed,gpu_hours,reward", rows, start="first").start_sd is None


# Seeds


def test_same_seed_in_two_files_is_two_runs(tmp_path: Path) -> None:
    for name in ("one", "two"):
        _only(tmp_path / f"{name}.csv", "arm,seed,gpu_hours,reward", [("a", *row) for row in _rising(0, (1, 2))])
    paths = [tmp_path / f"{name}.csv" for name in ("one", "two")]
    [series] = _select(*paths, by=("arm",))
    assert series.run is not None
    assert (series.run.tolist(), series.notes) == (["one", "one", "two", "two"], ())
    more = _only(
        tmp_path / "two.csv", "arm,seed,gpu_hours,reward", [("a", *_rising(s, (n,))[0]) for s in (0, 1) for n in (1, 2)]
    )
    assert more.notes
    [series] = _select(*paths, by=("arm",))
    assert series.run is not None
    assert sorted(set(series.run.tolist())) == ["one/0", "two/0", "two/1"]


# The scale: shares, per cent only for what is named as a rate, everything else as it is


@pytest.mark.parametrize(
    "column, rewards, scale, kinds",
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
    tmp_path: Path, column: str, rewards: tuple[float, ...], scale: YScale, kinds: list[str]
) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f"tokens,{column}\n" + "".join(f"{at},{reward}\n" for at, reward in enumerate(rewards, start=1)))
    [series] = _select(path)
    assert (series.y_scale, series.bounds, [fact.kind for fact in series.facts]) == (scale, SCALES[scale], kinds)
    assert series.reward.tolist() == list(rewards)


def _written(path: Path, unit: float = 1.0, low: float = 0.0) -> Path:
    """A sigmoid from a share of 0.2 to one of 0.7, in another unit."""
    rows = [(step, 0.2 + 0.5 / (1 + 10 / step) + 0.004 * (-1) ** step) for step in range(1, 61)]
    path.write_text("step,pass_rate\n" + "".join(f"{step},{low + unit * share}\n" for step, share in rows))
    return path


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
    assert percent_at.verdict == signed_at.verdict == at.verdict
    assert f"{percent_at.ceiling.value:.1f} [" in repr(percent.fit())
    assert percent.fit(form="log-linear").curves[0].ceiling.value == 100
    grids = [(share, (0.68, 0.72)), (percent, (68, 72))]
    paper, percent_paper = (runs.fit(method="paper", ceiling=ends).curves[0].ceiling.value for runs, ends in grids)
    assert percent_paper == pytest.approx(100 * paper)


def test_curves_in_shares_and_in_per_cent_are_compared_as_shares(tmp_path: Path) -> None:
    paths = [_written(tmp_path / "a.csv"), _written(tmp_path / "b.csv", 100)]
    first, second = scalerl.read([str(path) for path in paths])
    assert (second.y_scale, second.reward.tolist()) == ("1", pytest.approx(first.reward.tolist()))


def test_column_has_one_unit_for_all_its_arms(tmp_path: Path):
    rows = [(arm, step, top * step / 20) for arm, top in (("good", 58.0), ("bad", 0.9)) for step in range(1, 21)]
    path = tmp_path / "arms.csv"
    path.write_text("arm,step,pass_rate\n" + "".join(f"{arm},{step},{rate}\n" for arm, step, rate in rows))
    scales = {series.name: series.y_scale for series in _select(path)}
    assert set(scales.values()) == {"100"}
    assert len(scales) == 2


def test_one_start_for_shares_and_per_cent_is_a_share(tmp_path: Path):
    for name, unit in (("share.csv", 1), ("percent.csv", 100)):
        lines = [f"{step},{unit * 0.6 * step / 20}" for step in range(1, 21)]
        (tmp_path / name).write_text("step,pass_rate\n" + "\n".join(lines) + "\n")
    paths = [tmp_path / name for name in ("share.csv", "percent.csv")]
    assert [series.start for series in _select(*paths, start=0.02)] == [0.02, 0.02]


# Faults

CHOSEN, ROW = "arm,gpu_hours,pass_rate", [("a", 1, 0.5)]
# header, rows, options -> a part of the sentence
FAULTS: list[tuple[str, list[Any], dict[str, Any], str]] = [
    # of a file
    (CHOSEN, ROW, {"x": "gpu_hour"}, "log.csv has no column 'gpu_hour' (--x): did you mean 'gpu_hours'? It has"),
    (CHOSEN, ROW, {"y": "rate"}, "(--y): did you mean 'pass_rate'? It has pass_rate, arm, gpu_hours, file."),
    (CHOSEN, ROW, {"seed": "arms"}, "has no column 'arms' (--seed): did you mean 'arm'?"),
    (CHOSEN, ROW, {"by": ("zzz",)}, "(--by): it has arm, gpu_hours, pass_rate, file."),
    (CHOSEN, ROW, {"where": (("kind", "a"),)}, "has no column 'kind' (--where)"),
    (CHOSEN, ROW, {"holdout": ("kind", "a")}, "has no column 'kind' (--holdout)"),
    ("a,b", [(1, 0.5)], {}, "log.csv has no column recognised as compute: choose one with --x among a, b, file."),
    ("a,b", [(1, 0.5)], {"x": "a"}, "recognised as reward: choose one with --y"),
    ("step,reward,step_time", [(1, 0.5, 3600)], {"x": "gpu_hours"}, "--gpus N builds it from the log's clock"),
    ("step,reward", [(1, 0.5)], {"gpus": 8}, "--gpus 8 needs a clock"),
    (CHOSEN, ARMS, {"where": (("arm", "c"),)}, "--where arm=c matches no row of"),
    (CHOSEN, ARMS, {"holdout": ("arm", "c")}, "log.csv: the values there are a, b."),
    (PLAIN, [(1, ""), ("", 0.5)], {"x": "gpu_hours", "y": "reward"}, "1 have 'gpu_hours', 1 have 'reward' and none"),
    (CHOSEN, [("a", 1, "nan"), ("b", 1, "inf")], {"by": ("arm",)}, "no usable curve among 2; the first, a:"),
    # of a curve
    (PLAIN, [(1, 39.9)], {"start": -1, "y_scale": "100"}, "--start -1 is outside [0, 100], the scale of the rewards:"),
    (PLAIN, [(1, "nan")], {}, "'reward' is 'nan' where a finite number is needed, at line 2 of log.csv: correct"),
    (PLAIN, [(1, "nan"), (2, "-inf")], {}, "leave them out with --where 'reward!=-inf' --where 'reward!=nan', or"),
    (PLAIN, [(1, 0.5), ("inf", 0.5)], {}, "'gpu_hours' is 'inf' where a finite number is needed, at line 3 of log.csv"),
    (PLAIN, [(n, "nan") for n in range(1, 9)], {}, "at line 2, line 3, line 4, line 5, line 6 and 3 more of log.csv"),
    (PLAIN, [(1, 0.5), (2, "oops")], {}, "'reward' is 'oops' where a finite number is needed, at line 3 of log.csv"),
    (PLAIN, [(-3, 0.5), (1, 0.6)], {"start": "first"}, "'gpu_hours' is -3 at line 2 of log.csv"),
    (PLAIN, [(0, 0.5), (1, 0.6), (-3, 0.5)], {}, "'gpu_hours' is -3 at line 4 of log.csv"),
    (PLAIN, [(1, -0.5), (2, 0.6)], {"y_scale": "1"}, "outside [0, 1] of --y-scale 1 at line 2 of log.csv"),
    (PLAIN, [(1, 0.5), (2, 300)], {"y_scale": "100"}, "outside [0, 100] of --y-scale 100 at line 3 of log.csv"),
    (PLAIN, [(1, 0.5)], {"holdout": ("gpu_hours", "1")}, "every row of log matches --holdout gpu_hours=1: none"),
    (PLAIN, [(0, 0.5)], {"start": "first"}, "log has no row left to fit besides its start, at line 2 of log.csv."),
    (
        "timestamp,reward", [(1.7e9 + 60 * at, 0.1 + 0.01 * at) for at in range(8)], {"x": "timestamp"},
        "'timestamp' runs from 1700000000 to 1700000420, which is a time of day and not an amount spent",
    ),
]  # fmt: skip


@pytest.mark.parametrize("header, rows, options, sentence", FAULTS)
def test_fault_is_one_sentence(
    tmp_path: Path, header: str, rows: list[Any], options: dict[str, Any], sentence: str
) -> None:
    assert sentence in _fault(_csv(tmp_path / "log.csv", header, rows), **options)


def test_columns_that_are_named_need_not_be_recognised(tmp_path: Path) -> None:
    assert _only(tmp_path / "a.csv", "alpha,beta", [(1, 0.5)], x="alpha", y="beta").reward.tolist() == [0.5]
    assert _only(tmp_path / "b.csv", "step,reward", [(1, 0.5)], x="step", gpus=8).compute.tolist() == [1]
    assert "no file was given" in _fault()


def test_pooled_files_must_share_columns(tmp_path: Path) -> None:
    paths = [_csv(tmp_path / f"{x}.csv", f"arm,{x},reward", [("a", 1, 0.5)]) for x in ("gpu_hours", "flops")]
    expected = "the files of a use different columns (flops, gpu_hours): choose one with --x."
    assert _fault(*paths, by=("arm",)) == expected


def test_nan_counts_as_not_measured(tmp_path: Path) -> None:
    # As pandas writes a wandb history: NaN in every row that was logged by something else.
    rows = [{"step": n, "num_tokens": 100.0 * n, "reward": 0.2, "eval/acc": float("nan")} for n in range(1, 41)]
    rows += [{"step": n, "num_tokens": float("nan"), "reward": "NaN", "eval/acc": 0.01 * n} for n in range(4, 41, 4)]
    path = tmp_path / "history.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    [series] = _select(path)
    assert (series.x_label, series.y_label) == ("num_tokens", "eval/acc")
    assert series.compute.tolist() == [100.0 * n for n in range(4, 41, 4)]
    [fact] = [fact for fact in series.facts if fact.kind == "nan_rows"]
    assert (fact.values["columns"], fact.values["num"], fact.values["num_rows"]) == (("eval/acc",), 40, 50)
    assert "(line 1, line 2, line 3, line 4, line 5 and 35 more of history.jsonl)" in series.notes[0]


@pytest.mark.parametrize("bad", ["nan", "inf", "oops"])
def test_fault_of_one_of_several_curves_is_its_problem(tmp_path: Path, bad: str) -> None:
    path = _csv(tmp_path / "log.csv", "arm,gpu_hours,reward", [*ARMS, ("c", 1, bad)])
    first, second, third = _select(path, by=("arm",), y="reward")
    assert (first.problem, second.problem, third.name, third.compute.size) == (None, None, "c", 0)
    assert third.problem is not None
    assert "line 6 of log.csv" in third.problem


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
_OPTIONS: dict[str, Any] = {"by": ("arm",), "seed": "seed", "holdout": None}


def _by_name(path: Path, start: str | None) -> dict[str, dict[str, Any]]:
    try:
        return {series.name: _as_dict(series) for series in _select(path, start=start, **_OPTIONS)}
    except InputError:  # --start first may leave nothing
        return {}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=_ROWS, data=st.data(), start=st.sampled_from([None, "first"]))
def test_row_order_repeated_columns_and_format_do_not_matter(
    tmp_path: Path, rows: list[tuple[Any, ...]], data: st.DataObject, start: str | None
) -> None:
    shuffled = data.draw(st.permutations(rows))
    twice = data.draw(st.sampled_from(range(len(_NAMES))))
    plain = _csv(tmp_path / "one/log.csv", ",".join(_NAMES), rows)
    header = ",".join((*_NAMES, _NAMES[twice]))
    other = _csv(tmp_path / "two/log.csv", header, [(*row, row[twice]) for row in shuffled])
    lines = tmp_path / "log.jsonl"
    lines.write_text("".join(json.dumps(dict(zip(_NAMES, row, strict=True))) + "\n" for row in rows))
    expected, others = _by_name(plain, start), [_by_name(other, start), _by_name(lines, start)]
    for found in others:
        assert {name: _comparable(series) for name, series in found.items()} == {
            name: _comparable(series) for name, series in expected.items()
        }


def _comparable(series: dict[str, Any]) -> dict[str, Any]:
    """Rows equal in run, compute and reward may differ in their number of samples, and problems name lines."""
    return series | {"num_samples": sorted(series["num_samples"] or []), "problem": series["problem"] is None}
