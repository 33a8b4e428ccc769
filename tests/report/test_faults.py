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


DAMAGE = {
    # What is written to files below runs/ (None: removed), then faults as (run, part of the problem), then other facts.
    "evaluations are cut": (
        {"base-seed0/evals.jsonl": "six rows and a cut one", "lower-seed0/metrics.jsonl": None},
        [("base-seed0", "ends at step 50 of a run of 100"), ("lower-seed0", "has no rows in metrics.jsonl")],
        [],
    ),
    "an arm has no evaluation": (
        {"lower-seed0/env.json": "[]", "lower-seed0/evals.jsonl": ""},
        [("lower-seed0", "env.json: a JSON object is needed"), ("lower-seed0", "has no rows in evals.jsonl yet")],
        [],
    ),
    "runs ended badly": (
        {
            "lower-seed0/metrics.jsonl": None,
            "lower-seed0/status.json": '{"status": "failed", "reason": "the disk is full"}',
            "base-seed0/status.json": '{"status": "do',
        },
        [("base-seed0", "status.json, line 1: not JSON"), ("lower-seed0", "has no rows in metrics.jsonl")],
        [{"kind": "not_finished", "run": "lower-seed0", "status": "failed", "reason": "the disk is full"}],
    ),
    "recipes are damaged or lost": (
        {"lower-seed0/recipe.json": '{"seed": 1, "lo', "base-seed0/recipe.json": None},
        [("base-seed0", "has no recipe.json"), ("lower-seed0", "recipe.json, line 1: not JSON")],
        [],
    ),
}


@pytest.mark.parametrize(("files", "faults", "others"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_reported_and_the_rest_is_shown(
    tmp_path: Path, files: dict[str, str | None], faults: list[tuple[str, str]], others: list[dict[str, Any]]
):
    folder = write_study(tmp_path / "s", num=10)
    for name, text in files.items():
        path = folder / "runs" / name
        if text is None:
            path.unlink()
        else:
            rows = path.read_text().splitlines()
            path.write_text("\n".join([*rows[:6], '{"step": 60, "atte']) if text.startswith("six rows") else text)
    content = content_of(folder)
    found = [fact["problem"] for fact in content["warnings"] if fact["kind"] == "fault"]
    assert len(found) == len(faults)
    for problem, (run, part) in zip(found, faults, strict=True):
        assert problem.startswith(f"{run}: ")
        assert part in problem
    assert [fact for fact in content["warnings"] if fact["kind"] != "fault"] == others
    arms = ["base"] if "lower-seed0/evals.jsonl" in files else ["base", "lower"]
    assert [curve["label"] for curve in content["views"][0]["curves"]] == arms
    failed = [fact["names"] for fact in content["summary"][""] if fact["kind"] == "failed"]
    assert failed == [[fact["run"]] for fact in others]
    lost = [fact["names"] for fact in content["summary"][""] if fact["kind"] == "without_curve"]
    assert lost == ([] if len(arms) == 2 else [["lower"]])


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
