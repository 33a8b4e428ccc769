"""The start of a curve: which rows it is read from, and how certain it is; runs recognised by a seed column."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from scalerl.logs.formats import read_table
from scalerl.logs.series import Selection, Series, series_from


def _series(path: Path, header: str, rows: Sequence[Sequence[Any]], **options: Any) -> Series:
    path.write_text(header + "\n" + "".join(",".join(str(cell) for cell in row) + "\n" for row in rows))
    [found] = series_from([read_table(path)], Selection(**options))
    return found


def _rising(seed: int, computes: Sequence[float] = (0, 1, 2, 3)) -> list[tuple[int, float, float]]:
    return [(seed, compute, 0.2 + 0.1 * compute + 0.001 * seed) for compute in computes]


# The start


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
    "twice": ("gpu_hours", [(0, 0.3), *ROWS], {"start": "first"}, (0.25, None, [1, 2], ["start_is_a_mean"])),
    "late": ("gpu_hours", LATE, {"start": "first"}, (None, 0.0, [1, 2, 10], ["start_is_late"])),
    "within a hundredth": ("gpu_hours", EARLY, {"start": "first"}, (0.3, None, [2, 10], [])),
}  # fmt: skip


@pytest.mark.parametrize("name", STARTS)
def test_start_is_found(tmp_path: Path, name: str) -> None:
    x, rows, options, expected = STARTS[name]
    series = _series(tmp_path / "a.csv", f"{x},reward" + ",num_samples" * (len(rows[0]) > 2), rows, **options)
    kinds = [fact.kind for fact in series.facts]
    assert (series.start, series.start_sd, series.compute.tolist(), kinds) == expected


def test_start_without_sample_counts_is_noisy(tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text("{}")
    rows = [f'{{"step": {n}, "set": "val", "gpu_hours": {n}, "reward": {0.2 + 0.1 * n}}}\n' for n in range(4)]
    (tmp_path / "evals.jsonl").write_text("".join(rows))
    [series] = series_from([read_table(tmp_path)], Selection())
    assert (series.start, series.start_sd) == (0.2, None)


def test_spread_of_the_start_needs_many_starts(tmp_path: Path) -> None:
    for runs, expected in ((3, None), (4, pytest.approx(0.001 * (5 / 3) ** 0.5 / 2))):
        rows = [row for seed in range(runs) for row in _rising(seed)]
        series = _series(tmp_path / "a.csv", "seed,gpu_hours,reward", rows, start="first", seed="seed")
        assert series.start == pytest.approx(0.2 + 0.001 * (runs - 1) / 2)
        assert series.start_sd == expected


def test_evaluation_copied_into_every_run_counts_once(tmp_path: Path) -> None:
    rows = [(seed, compute, 0.1 + 0.1 * compute) for seed in range(5) for compute in range(4)]
    assert _series(tmp_path / "a.csv", "seed,gpu_hours,reward", rows, start="first").start_sd is None


# Seeds


def test_seed_column_separates_runs_and_is_noted(tmp_path: Path) -> None:
    rows = [*_rising(0, (1, 2)), *_rising(1, (1, 2))]
    series = _series(tmp_path / "a.csv", "seed,gpu_hours,reward", rows)
    assert series.run is not None
    assert series.run.tolist() == ["0", "0", "1", "1"]
    assert [fact.kind for fact in series.facts] == ["runs_by_column"]
    named = _series(tmp_path / "a.csv", "seed,gpu_hours,reward", rows, seed="seed")
    assert named.run is not None
    assert (named.run.tolist(), named.notes) == (series.run.tolist(), ())


def test_single_seed_is_not_noted(tmp_path: Path) -> None:
    series = _series(tmp_path / "a.csv", "seed,gpu_hours,reward", _rising(7, (1, 2, 3)))
    assert (series.run, series.notes) == (None, ())


def test_seed_that_differs_in_every_row_is_ignored(tmp_path: Path) -> None:
    rows = [(100 + compute, compute, 0.1 * compute) for compute in range(1, 7)]
    series = _series(tmp_path / "a.csv", "seed,gpu_hours,reward", rows)
    assert series.run is None
    assert [fact.kind for fact in series.facts] == ["seed_has_too_many_values"]


def test_same_seed_in_two_files_is_two_runs(tmp_path: Path) -> None:
    for name in ("one", "two"):
        _series(tmp_path / f"{name}.csv", "arm,seed,gpu_hours,reward", [("a", *row) for row in _rising(0, (1, 2))])
    tables = [read_table(tmp_path / f"{name}.csv") for name in ("one", "two")]
    [series] = series_from(tables, Selection(by=("arm",)))
    assert series.run is not None
    assert (series.run.tolist(), series.notes) == (["one", "one", "two", "two"], ())
    more = _series(
        tmp_path / "two.csv", "arm,seed,gpu_hours,reward", [("a", *_rising(s, (n,))[0]) for s in (0, 1) for n in (1, 2)]
    )
    assert more.notes
    [series] = series_from([read_table(tmp_path / f"{name}.csv") for name in ("one", "two")], Selection(by=("arm",)))
    assert series.run is not None
    assert sorted(set(series.run.tolist())) == ["one/0", "two/0", "two/1"]


def test_clock_that_begins_with_the_first_row_is_completed(tmp_path: Path) -> None:
    rows = [(step, 360.0 * (step - 10), 0.3 + step / 1000) for step in range(10, 60, 10)]
    series = _series(tmp_path / "a.csv", "step,elapsed_s,reward", rows)
    assert (series.start, series.x_label) == (None, "hours")
    assert series.compute.tolist() == pytest.approx([1, 2, 3, 4, 5])
