"""Restarted runs: superseded rows are dropped, attempts are separated, restarted clocks are refused."""

import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from scalerl.errors import InputError
from scalerl.logs.formats import read_table
from scalerl.logs.series import Selection, Series, series_from

Rows = list[tuple[Any, ...]]


def _rows(steps: Iterable[int], *, shift: float = 0.0, spent: float = 0.0) -> Rows:
    return [(step, 100 * step - spent, round(0.3 + step / 100 + shift, 4)) for step in steps]


FIRST, SECOND = _rows(range(1, 26)), _rows(range(16, 41), shift=0.001)


def _series(
    folder: Path, rows: Sequence[Sequence[Any]], header: str = "step,gpu_hours,reward", **options: Any
) -> Series:
    path = folder / "log.csv"
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows), ""]))
    [found] = series_from([read_table(path)], Selection(**options))
    return found


def _points(series: Series) -> list[tuple[float, float]]:
    return sorted(zip(series.compute.tolist(), series.reward.tolist(), strict=True))


def _expected(rows: Rows) -> list[tuple[float, float]]:
    return sorted((compute, reward) for _, compute, reward in rows)


def _twice(rows: Rows) -> Rows:
    return [row for one in rows for row in (one, (*one[:2], round(one[2] + 0.1, 4)))]


def _shuffled(rows: Rows) -> Rows:
    return random.Random(0).sample(rows, len(rows))


THIRD, LOST = _rows(range(11, 15), shift=0.002), _rows(range(16, 21), spent=-1000)
LATE, AGAIN = _rows([5, 6, 7, 4, 8, 9, 10, 11]), _rows(range(2, 40, 2)) + _rows([20], shift=0.002)
BETWEEN = _rows([1, 11, 21, 31, 26, 36, 46, 56, 66])
SIDE_BY_SIDE = [row for step in range(1, 11) for row in ((step, 100 * step, 0.5), (step, 300 * step, 0.6))]

# Rows as they are written -> rows that count, and the kinds of facts
ATTEMPTS: dict[str, tuple[Rows, Rows, set[str]]] = {
    "newest first": (FIRST[::-1], FIRST, set()),
    "resumed": (FIRST + SECOND, FIRST[:15] + SECOND, {"superseded"}),
    "resumed twice": (FIRST + SECOND + THIRD, FIRST[:10] + THIRD, {"superseded"}),
    "several rows per step": (
        _twice(FIRST + SECOND), _twice(FIRST[:15] + SECOND), {"superseded", "several_per_compute"},
    ),
    "no order": (_shuffled(FIRST + SECOND), FIRST + SECOND, set()),
    "one row late": (LATE, LATE, set()),
    "the best step evaluated again": (AGAIN, AGAIN, set()),
    "lost work counts as compute": (FIRST + LOST, FIRST[:15] + LOST, {"superseded"}),
    "runs side by side": (SIDE_BY_SIDE, SIDE_BY_SIDE, set()),
    "short attempts": (_rows([1, 2, 1, 2]) + FIRST, FIRST, {"short_attempts"}),
    "resumed between logged steps": (BETWEEN, BETWEEN[:3] + BETWEEN[4:], {"superseded"}),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTEMPTS)
def test_rows_of_the_model_that_is_gone_are_left_out(tmp_path: Path, name: str) -> None:
    written, counted, kinds = ATTEMPTS[name]
    series = _series(tmp_path, written)
    assert (_points(series), {fact.kind for fact in series.facts}) == (_expected(counted), kinds)


def test_trainer_step_shows_a_resumed_run_beside_wandb_step(tmp_path: Path) -> None:
    rows = [(at, *row) for at, row in enumerate(FIRST + SECOND)]
    series = _series(tmp_path, rows, "_step,train/global_step,gpu_hours,reward")
    assert _points(series) == _expected(FIRST[:15] + SECOND)


def test_resumed_verl_log(tmp_path: Path) -> None:
    steps = [*range(1, 26), *range(16, 41)]
    rows = [{"step": s, "data": {"timing_s/step": 3600, "val-core/a/acc/mean@1": n / 100}} for n, s in enumerate(steps)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    [series] = series_from([read_table(tmp_path / "log.jsonl")], Selection())
    assert series.compute.tolist() == list(range(1, 41))
    assert series.reward.tolist() == [n / 100 for n in (*range(15), *range(25, 50))]


@pytest.mark.parametrize(
    "rows, header, options",
    [
        pytest.param([row[::-1] for row in FIRST + SECOND], "reward,gpu_hours,step", {"x": "step"}, id="control"),
        pytest.param([row[1:] for row in FIRST + SECOND], "gpu_hours,reward", {}, id="no step"),
        pytest.param(
            [(*row, "a") for row in FIRST] + [(*row, "b") for row in SECOND],
            "step,gpu_hours,reward,phase",
            {},
            id="words",
        ),
        pytest.param(
            [(*row, 1) for row in FIRST] + [(*row, 2) for row in SECOND],
            "step,gpu_hours,reward,copy",
            {"seed": "copy"},
            id="runs",
        ),
    ],
)
def test_other_logs_keep_every_row(
    tmp_path: Path, request: pytest.FixtureRequest, rows: Rows, header: str, options: dict[str, Any]
) -> None:
    series = _series(tmp_path, rows, header, **options)
    is_control = "control" in request.node.callspec.id
    assert (len(series.compute) < len(rows)) == is_control
    assert any("as where a run is resumed" in note for note in series.notes) == is_control


def test_timestamps_do_not_separate_runs(tmp_path: Path) -> None:
    rows = [(*row, f"12:{at:02}") for at, row in enumerate(FIRST + SECOND)]
    assert len(_series(tmp_path, rows, "step,gpu_hours,reward,time").compute) == 40


# The clock


@pytest.mark.parametrize(
    "later, line", [(_rows(range(16, 41), spent=1500), 27), (_rows(range(26, 41), spent=2500), 27)]
)
def test_restarted_clock_is_refused_with_advice(tmp_path: Path, later: Rows, line: int) -> None:
    with pytest.raises(InputError) as caught:
        _series(tmp_path, FIRST + later)
    step = later[0][0]
    assert f"'gpu_hours' falls from {100 * (step - 1)} to 100 at line {line} of log.csv" in str(caught.value)
    assert f"while the step rises from {step - 1} to {step}" in str(caught.value)
    assert str(caught.value).endswith("such as --x step.")
    assert _series(tmp_path, FIRST + later, x="step").compute.tolist() == list(range(1, 41))


# Attempts that begin anew


def _write_lines(path: Path, steps: Sequence[int], **more: Any) -> Path:
    rows = [{"step": step, "eval/acc": round(0.3 + at / 1000, 4), **more} for at, step in enumerate(steps)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _all(path: Path, **options: Any) -> list[Series]:
    return series_from([read_table(path)], Selection(**options))


def test_attempts_from_the_beginning_are_separate_curves(tmp_path: Path) -> None:
    path = _write_lines(tmp_path / "log.jsonl", [*range(1, 11), *range(1, 21)])
    first, second = _all(path)
    assert (first.name, second.name) == ("attempt 1", "attempt 2")
    assert (first.compute.tolist(), second.compute.tolist()) == (list(range(1, 11)), list(range(1, 21)))
    [fact] = second.facts
    assert (fact.kind, fact.values["num"]) == ("attempts", 2)
    [only] = _all(path, where=(("attempt", "2"),))
    assert only.reward.tolist() == second.reward.tolist()
    [pooled] = _all(path, seed="attempt")
    assert pooled.run is not None
    assert sorted(set(pooled.run.tolist())) == ["1", "2"]


def test_resumed_run_that_evaluates_step_0_again_is_one_curve(tmp_path: Path) -> None:
    [series] = _all(_write_lines(tmp_path / "log.jsonl", [*range(26), 0, *range(16, 41)]))
    assert series.compute.tolist() == list(range(1, 41))
    assert series.reward[15:].tolist() == [round(0.3 + at / 1000, 4) for at in range(27, 52)]
    assert {fact.kind for fact in series.facts} == {"superseded", "start_at_zero"}


def test_stacked_runs_that_differ_in_a_number_name_it(tmp_path: Path) -> None:
    rows = [{"step": step, "rho": rho, "reward": 0.4} for rho in (0.7, 0.9) for step in range(1, 11)]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    first, _ = _all(path)
    assert first.facts[0].values["differ"] == ("rho",)
    assert "--by rho" in first.notes[0]
    assert [series.name for series in _all(path, by=("rho",))] == ["rho=0.7", "rho=0.9"]
    assert not any(series.facts for series in _all(path, by=("rho",)))


def test_hours_of_each_attempt_begin_at_zero(tmp_path: Path) -> None:
    path = _write_lines(tmp_path / "log.jsonl", [*range(1, 11), *range(1, 11)], **{"time/step": 3600.0})
    assert [series.compute.tolist() for series in _all(path)] == [list(range(1, 11))] * 2


def test_stacked_seeds_are_not_attempts(tmp_path: Path) -> None:
    rows = [(step, 100 * step, 0.4, seed) for seed in (0, 1) for step in range(1, 11)]
    series = _series(tmp_path, rows, "step,gpu_hours,reward,seed")
    assert series.run is not None
    assert [fact.kind for fact in series.facts] == ["runs_by_column"]


def test_cut_line_of_a_killed_writer_is_left_out(tmp_path: Path) -> None:
    path = _write_lines(tmp_path / "log.jsonl", range(1, 11))
    text = path.read_text()
    path.write_text(text + '{"step": 11, "eval/a' + text[text.index('{"step": 8') :].replace("0.30", "0.40"))
    [series] = _all(path)
    assert series.compute.tolist() == list(range(1, 11))
    assert series.reward[7] == pytest.approx(0.407)
    assert {fact.kind for fact in series.facts} == {"cut_lines", "superseded"}
