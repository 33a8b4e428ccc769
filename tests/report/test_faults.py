"""What a report says of runs and logs that are cut, lost, mixed or alike."""

from pathlib import Path
from typing import Any

import pytest
from run_folders import write_study

from scalerl.logs.formats import read_table
from scalerl.logs.series import Selection, series_from
from scalerl.report import views as report_views
from scalerl.report.results import FitOptions
from scalerl.report.write import build_report, report_json


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """One view a report: the first axis with all points."""
    monkeypatch.setattr(report_views, "SHARES", ())
    monkeypatch.setattr(report_views, "_candidates", lambda tables: [])


def content_of(folder: Path) -> dict[str, Any]:
    return report_json(build_report([folder], Selection(), FitOptions()))


def test_truncated_evals_are_reported(tmp_path: Path):
    folder = write_study(tmp_path / "s", seeds=(0, 1), num=10)
    evals = folder / "runs/base-seed0/evals.jsonl"
    evals.write_text("\n".join([*evals.read_text().splitlines()[:6], '{"step": 60, "atte']))
    (folder / "runs/lower-seed0/metrics.jsonl").unlink()
    content = content_of(folder)
    assert [fact["kind"] for fact in content["warnings"]] == ["fault", "fault"]
    first, second = (fact["problem"] for fact in content["warnings"])
    assert first.startswith(f"base-seed0: {evals} ends at step 50 of a run of 100: ")
    assert second.startswith(f"lower-seed0: {folder / 'runs/lower-seed0'} has no rows in metrics.jsonl: ")


def test_arm_without_evaluations_is_named(tmp_path: Path):
    folder = write_study(tmp_path / "s", num=10)
    (folder / "runs/lower-seed0/env.json").write_text("[]")
    (folder / "runs/lower-seed0/evals.jsonl").write_text("")
    content = content_of(folder)
    assert len(content["warnings"]) == 2
    assert "has no rows in evals.jsonl yet" in content["warnings"][1]["problem"]
    assert {"kind": "without_curve", "names": ["lower"]} in content["summary"][""]


def test_end_of_a_run_is_reported_with_other_files_broken(tmp_path: Path):
    folder = write_study(tmp_path / "s", num=10)
    (folder / "runs/lower-seed0/metrics.jsonl").unlink()
    (folder / "runs/lower-seed0/status.json").write_text('{"status": "failed", "reason": "the disk is full"}')
    (folder / "runs/base-seed0/status.json").write_text('{"status": "do')
    faults, cut = content_of(folder)["warnings"][:2], content_of(folder)["warnings"][-1]
    failed = {"kind": "not_finished", "run": "lower-seed0", "status": "failed", "reason": "the disk is full"}
    assert cut == failed
    assert ["base-seed0" in fact["problem"] for fact in faults] == [True, False]


def test_a_run_with_a_damaged_recipe_keeps_its_curve(tmp_path: Path):
    folder = write_study(tmp_path / "s", num=10)
    (folder / "runs/lower-seed0/recipe.json").write_text('{"seed": 1, "lo')
    content = content_of(folder)
    assert [curve["label"] for curve in content["views"][0]["curves"]] == ["base", "lower"]
    assert "lower-seed0" in content["warnings"][0]["problem"]


def test_base_leads_if_the_best_had_other_prompts(tmp_path: Path):
    folder = write_study(tmp_path / "s", num=12, plan={"base": "lower"})
    evals = folder / "runs/base-seed0/evals.jsonl"
    evals.write_text(evals.read_text().replace("p0-main", "p1-main"))
    content = content_of(folder)
    assert (content["sets"][0]["lead"]["kind"], content["sets"][0]["lead"]["name"]) == ("alone", "lower")
    assert content["views"][0]["pairs"][0]["kind"] == "not_comparable"


def test_arms_that_never_differ_are_pointed_out(tmp_path: Path):
    folder = write_study(tmp_path / "s", num=8)
    same = (folder / "runs/base-seed0/evals.jsonl").read_text()
    (folder / "runs/lower-seed0/evals.jsonl").write_text(same)
    assert content_of(folder)["warnings"] == [{"kind": "equal_curves", "names": ["base", "lower"]}]


def test_curves_that_were_taken_as_one_are_warned_of(tmp_path: Path):
    lines = [f"{size},{step},{0.3 + 0.01 * step:.3f}" for size in ("0.5B", "7B") for step in range(1, 13)]
    (tmp_path / "log.csv").write_text("\n".join(["size,gpu_hours,pass_rate", *lines]))
    (fact,) = content_of(tmp_path / "log.csv")["warnings"]
    assert (fact["kind"], fact["name"]) == ("mixed", "log")
    assert fact["problem"].startswith("Rows over the same compute differ in size but are taken as one curve: name")


@pytest.mark.parametrize(
    ("words", "by", "mixed"),
    [
        (["a", "b"] * 6, (), True),
        (["a", "b"] * 6, ("word",), False),
        (["warm-up"] * 6 + ["main"] * 6, (), False),
        ([f"day {day}" for day in range(12)], (), False),
        (["1", "2"] * 6, (), False),
    ],
)
def test_words_that_differ_over_the_same_compute_are_pointed_out(
    tmp_path: Path, words: list[str], by: tuple[str, ...], mixed: bool
):
    lines = [f"{word},{place},{0.3 + 0.01 * place:.2f}" for place, word in enumerate(words, start=1)]
    (tmp_path / "log.csv").write_text("\n".join(["word,gpu_hours,pass_rate", *lines]))
    (first, *_) = series_from([read_table(tmp_path / "log.csv")], Selection(by=by))
    assert bool(first.mixed) == mixed
    assert first.notes == ((first.mixed,) if mixed else ())
