"""Which axis a run folder is fitted over when its time per FLOP changed."""

import json
from pathlib import Path

import pytest
from run_folders import write_run

from scalerl.logs.axes import UNEVEN_TIME, disagreement, preferred_axis
from scalerl.logs.formats import read_table
from scalerl.logs.series import Selection, series_from


def busy(folder: Path) -> Path:
    """A run that took eight times as long per step in its second half."""
    write_run(folder)
    for name in ("evals.jsonl", "metrics.jsonl"):
        rows = [json.loads(line) for line in (folder / name).read_text().splitlines()]
        for row in rows:
            row["gpu_hours"] += 0.07 * max(row["step"] - 80, 0)
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_one_run_with_uneven_time_is_fitted_over_flops(tmp_path: Path):
    (series,) = series_from([read_table(busy(tmp_path / "a"))], Selection())
    assert series.x_label == "flops"
    (fact,) = [fact for fact in series.facts if fact.kind == "uneven_time"]
    assert fact.values["used"] == "flops"
    assert any("Compute is counted in FLOPs" in note for note in series.notes)
    (asked,) = series_from([read_table(tmp_path / "a")], Selection(x="gpu_hours"))
    assert asked.x_label == "gpu_hours"


def test_even_time_stays_on_gpu_hours(tmp_path: Path):
    (series,) = series_from([read_table(write_run(tmp_path / "a"))], Selection())
    assert series.x_label == "gpu_hours"
    assert "uneven_time" not in {fact.kind for fact in series.facts}


def test_comparisons_keep_gpu_hours_and_say_so(tmp_path: Path):
    tables = [read_table(busy(tmp_path / "a")), read_table(write_run(tmp_path / "b"))]
    a, b = series_from(tables, Selection())
    assert (a.x_label, b.x_label) == ("gpu_hours", "gpu_hours")
    assert any("better fitted over FLOPs" in note for note in a.notes)


def rows(hours: list[float]) -> list[dict[str, float]]:
    return [{"gpu_hours": spent, "flops": 1e12 * place} for place, spent in enumerate(hours)]


def test_even_time_agrees():
    assert disagreement(rows([0.5 * place for place in range(20)])) == pytest.approx(0)
    assert preferred_axis(rows([0.5 * place for place in range(20)])) == "gpu_hours"


def test_busy_stretch_prefers_flops():
    # Ten of twenty steps take eight times as long, since another process has the machine.
    hours = [0.1 * place for place in range(11)] + [1.0 + 0.8 * place for place in range(1, 11)]
    assert disagreement(rows(hours)) == pytest.approx(0.5 - 1 / 9)
    assert preferred_axis(rows(hours)) == "flops"


def test_rows_without_compute_do_not_disagree():
    assert disagreement([]) == 0
    assert disagreement([{"gpu_hours": None, "flops": 3.0}, {"step": 1}]) == 0
    assert disagreement([{"gpu_hours": 0.0, "flops": 0.0}]) == 0
    assert 0 < UNEVEN_TIME < 1
