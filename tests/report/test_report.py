"""The report: one analysis behind page, Markdown and JSON; what is broken is said, and the rest comes out."""

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_folders import write_run, write_study
from typer.testing import CliRunner

from scalerl.cli import app
from scalerl.curves import PairKind
from scalerl.errors import InputError
from scalerl.logs.facts import Fact
from scalerl.logs.series import Selection
from scalerl.report import conclusions
from scalerl.report import views as report_views
from scalerl.report.inputs import gather
from scalerl.report.page import page
from scalerl.report.results import FitOptions
from scalerl.report.write import build_report, page_json, report_json, write_report


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("study") / "two-arms", num=12)


@pytest.fixture(scope="module")
def written(study: Path) -> dict[str, Any]:
    """The files of a report, and the JSON that its page holds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_views, "SHARES", (0.5,))
        path = write_report([study]).page
    html = path.read_text(encoding="utf-8")
    data = html.split('id="data">')[1].split("</script>")[0]
    return {"page": path, "html": html, "content": json.loads(data), "markdown": (study / "report.md").read_text()}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """One view a report: the first axis with all points."""
    monkeypatch.setattr(report_views, "SHARES", ())
    monkeypatch.setattr(report_views, "_candidates", lambda tables: [])


def content_of(*inputs: Path, selection: Selection | None = None, options: FitOptions | None = None) -> dict[str, Any]:
    return report_json(build_report(inputs, selection or Selection(), options or FitOptions()))


def view(content: dict[str, Any], axis: str | None = None, window: str = "all") -> dict[str, Any]:
    axis = axis or content["axes"][0]["key"]
    return next(one for one in content["views"] if one["axis"] == axis and one["window"] == window)


# What it says


def test_winner_is_named_first(written: dict[str, Any]):
    """As the command `compare` says it."""
    content = written["content"]
    lead = content["sets"][0]["lead"]
    assert {key: lead[key] for key in ("kind", "name", "tied", "num")} == {
        "kind": "take", "name": "base", "tied": [], "num": 2,
    }  # fmt: skip
    first, state, *_ = content["summary"][""]
    assert first == "Take base: best with probability over 99%."
    assert re.match(r"base levels off at 0\.6\d\d \(90% between 0\.", state)
    assert [(pair["kind"], pair["winner"]) for pair in view(content)["pairs"]] == [(PairKind.HIGHER_CEILING, "base")]
    assert content["sets"][0]["reference"] == "base"


def test_every_axis_and_window_is_fitted_separately(written: dict[str, Any]):
    content = written["content"]
    assert [axis["label"] for axis in content["axes"]] == ["CPU-hours", "FLOPs", "steps", "tokens"]
    assert [window["key"] for window in content["windows"]] == ["50%", "all"]
    assert len(content["views"]) == 8
    steps, tokens = (view(content, axis)["curves"][0]["midpoint"]["value"] for axis in ("step", "tokens"))
    assert tokens == pytest.approx(5000 * steps, rel=1e-3)
    half = view(content, window="50%")["curves"][0]
    assert half["line"]["last"] == pytest.approx(0.6)
    assert half["holdout"]["num_points"] == 6
    assert half["holdout"]["rmse"] < 0.05
    assert view(content)["curves"][0]["holdout"] is None


@pytest.mark.parametrize(
    ("plan", "early"), [({}, ("25%", "50%")), ({"fit": {"until": 0.3}}, ("25%", "held-out", "50%"))]
)
def test_many_curves_have_all_windows_on_the_first_axis_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: dict[str, Any], early: tuple[str, ...]
):
    """On the others the window shown first, and all points, which are shown where nothing can be fitted on it."""
    monkeypatch.setattr(report_views, "MOST_PAIRED", 1)
    monkeypatch.setattr(report_views, "_candidates", lambda tables: ["tokens"])
    content = content_of(write_study(tmp_path / "s", num=8, plan=plan))
    assert content["window"] == "all"
    assert content["notes"] == ([{"kind": "window_too_short", "window": "first 30%"}] if plan else [])
    assert content["sets"][0]["lead"] is not None
    assert [(one["axis"], one["window"]) for one in content["views"]] == [
        *(("gpu_hours", window) for window in (*early, "all")),
        *(("tokens", window) for window in ("held-out", "all") if window in (*early, "all")),
    ]
    assert [one["pairs"] != [] for one in content["views"] if one["window"] == "all"] == [not plan, False]


@pytest.mark.usefixtures("quick")
def test_fits_in_worker_processes_change_nothing(study: Path, monkeypatch: pytest.MonkeyPatch):
    here = page_json(build_report([study], Selection(), FitOptions()))
    monkeypatch.setattr(report_views, "worth", lambda num_calls: 2)
    assert page_json(build_report([study], Selection(), FitOptions())) == here


def test_page_and_markdown_show_the_same_numbers_as_the_json(written: dict[str, Any]):
    curve = view(written["content"])["curves"][0]
    ceiling = curve["ceiling"]
    shown = f"{ceiling['value']:.3f} [{ceiling['low']:.3f}, {ceiling['high']:.3f}]"
    assert f"| base | ok | {shown} |" in written["markdown"]
    [pair] = view(written["content"])["pairs"]
    [line] = [line for line in written["markdown"].splitlines() if line.startswith("| base | lower |")]
    ratio = pair["target"]["compute_ratio"]
    assert f"| {pair['p_higher_ceiling']:.2f} | {ratio['value']:.3g} [{ratio['low']:.3g}, " in line
    assert "| base has the higher ceiling |" in line


def test_page_is_self_contained(written: dict[str, Any]):
    assert "://" not in written["html"].replace("http://www.w3.org/2000/svg", "")
    names = [line.split("](")[1].rstrip(")") for line in written["markdown"].splitlines() if line.startswith("![")]
    assert len(names) == 1
    for name in names:
        assert (written["page"].parent / name).stat().st_size > 10_000


def test_settings_costs_environment_and_signals(written: dict[str, Any]):
    content = written["content"]
    assert content["differences"]["rows"] == [{"arm": "lower", "key": "loss.name", "base": "cispo", "value": "dapo"}]
    assert content["runs"][0]["cost"]["gpu_hours"] == pytest.approx(1.2)
    assert content["runs"][0]["seconds"] == {"training": 36.0 * 120, "evaluation": 240.0}
    assert content["environment"]["torch"] == {"2.11": ["base-seed0", "lower-seed0"]}
    assert [line["key"] for line in content["runs"][0]["signals"]["lines"]] == [
        "rollout/truncated_frac", "loss/entropy", "loss/kl", "rollout/lag_max",
    ]  # fmt: skip


@pytest.mark.usefixtures("quick")
def test_study_windows_decide_what_is_fitted_and_scored(tmp_path: Path):
    windows = {"fit": {"skip_before": 0.2, "until": 0.5}, "holdout": {"from": 0.8}}
    content = content_of(write_study(tmp_path / "s", num=20, plan=windows))
    assert content["window"] == "held-out"
    own, whole = (view(content, window=key)["curves"][0] for key in ("held-out", "all"))
    assert (own["line"]["first"], own["line"]["last"]) == pytest.approx((0.4, 1.0))
    assert (whole["line"]["first"], whole["line"]["last"]) == pytest.approx((0.4, 2.0))
    assert own["holdout"]["num_points"] == 5
    score = content["summary"][""][-1]
    assert (score["kind"], score["window"], score["num"]) == ("forecast_score", "first 50%", 10)
    assert score["rmse"] < 0.01


@pytest.mark.usefixtures("quick")
def test_absolute_windows_cut_all_arms_at_equal_compute(tmp_path: Path):
    windows = {"fit": {"skip_before_compute": 0.4, "until_compute": 1.0}, "holdout": {"from_compute": 1.6}}
    folder = write_study(tmp_path / "s", num=20, plan=windows)
    # One arm runs twice as far as the other: its half is not the other's.
    lines = (folder / "runs/lower-seed0/evals.jsonl").read_text().splitlines()
    longer = [json.loads(line) for line in lines]
    last = longer[-1]
    longer += [last | {"step": last["step"] + place, "gpu_hours": 2.0 + 0.1 * place} for place in range(1, 21)]
    (folder / "runs/lower-seed0/evals.jsonl").write_text("\n".join(map(json.dumps, longer)))
    content = content_of(folder)
    assert content["window"] == "held-out"
    curves = view(content, window="held-out")["curves"]
    assert [(curve["line"]["first"], curve["line"]["last"]) for curve in curves] == [pytest.approx((0.4, 1.0))] * 2
    assert [curve["holdout"]["num_points"] for curve in curves] == [5, 25]
    assert content["summary"][""][-1]["window"] == "up to 1"


@pytest.mark.usefixtures("quick")
def test_collapsed_curve_does_not_lead(tmp_path: Path):
    content = told_of_curves(tmp_path, {"steady": [0.6] * 24, "broken": [0.65] * 14 + [0.45] * 10})
    verdicts = {curve["name"]: (curve["verdict"], curve["unpooled"]) for curve in view(content)["curves"]}
    assert verdicts["broken"] == ("fallen", None)
    assert content["sets"][0]["lead"]["name"] == "steady"
    assert [row["name"] for row in view(content)["standings"]] == ["steady", "broken"]
    assert {"kind": "past_peak", "names": ["broken"]} in content["summary"][""]


@pytest.mark.usefixtures("quick")
def test_curves_are_pooled_where_that_is_asked_for(tmp_path: Path):
    ceilings = {f"arm{place}": [0.5 + 0.01 * place] * 24 for place in range(3)}
    content = told_of_curves(tmp_path, ceilings, FitOptions(pool=True))
    assert all(curve["unpooled"] is not None for curve in view(content)["curves"])


def told_of_curves(folder: Path, ceilings: dict[str, list[float]], options: FitOptions | None = None) -> dict[str, Any]:
    """The report of curves that rise from 0.3 towards these ceilings, the midpoint at the third of 24 points."""
    noise = np.random.default_rng(1)
    lines = ["recipe,gpu_hours,pass_rate"]
    for recipe, levels in ceilings.items():
        for place, ceiling in enumerate(levels, start=1):
            reward = 0.3 + (ceiling - 0.3) / (1 + (3 / place) ** 2) + 0.003 * noise.normal()
            lines.append(f"{recipe},{100 * place},{reward:.5f}")
    (folder / "log.csv").write_text("\n".join(lines))
    return content_of(folder / "log.csv", selection=Selection(by=("recipe",), start=0.3), options=options)


def test_the_forecasts_are_those_of_the_forecast_command(study: Path, written: dict[str, Any]):
    content = view(written["content"])["curves"]
    computes = [row["compute"] for row in content[0]["at"]]
    result = CliRunner().invoke(app, ["forecast", str(study), "--at", ",".join(map(repr, computes)), "--json"])
    for curve, asked in zip(content, json.loads(result.stdout)["curves"], strict=True):
        assert asked["name"] == curve["name"]
        assert asked["at"] == curve["at"]
        cells = [row["reward"] for row in asked["at"]]
        words = " | ".join(f"{row['value']:.3f} [{row['low']:.3f}, {row['high']:.3f}]" for row in cells)
        assert f" | {words} | " in written["markdown"]


def test_a_name_cannot_end_the_script_or_become_markup(written: dict[str, Any]):
    html = page({**written["content"], "title": "</script><b>x", "warnings": ["<img src=x>"]})
    assert html.count("</script>") == written["html"].count("</script>")
    assert "<img" not in html
    assert "&lt;b&gt;x" in html
    assert "<b>x" not in html


@pytest.mark.usefixtures("quick")
def test_json_has_kinds_and_the_page_adds_sentences(written: dict[str, Any], study: Path):
    content, told = content_of(study), written["content"]
    assert set(told) - set(content) == {"tables", "samples", "alarms"}
    assert [fact["kind"] for fact in content["summary"][""]][:3] == ["lead", "state", "higher_ceiling"]
    assert [len(facts) for facts in content["summary"].values()] == [len(texts) for texts in told["summary"].values()]
    assert not {"text", "verdict_text"} & {key for one in content["views"] for curve in one["curves"] for key in curve}


def test_every_kind_has_a_sentence():
    made = set(re.findall(r"""(?:said\(\s*|Fact\(kind=)"(\w+)\"""", "".join(
        path.read_text() for path in Path(conclusions.__file__).parent.glob("*.py"))))  # fmt: skip
    made |= {*conclusions.GROUPS.values(), *conclusions.RELATIONS.values()}
    assert made == set(conclusions.SENTENCES)


# What is broken or missing


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
@pytest.mark.usefixtures("quick")
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
    assert [curve["label"] for curve in view(content)["curves"]] == arms
    failed = [fact["names"] for fact in content["summary"][""] if fact["kind"] == "failed"]
    assert failed == [[fact["run"]] for fact in others]
    lost = [fact["names"] for fact in content["summary"][""] if fact["kind"] == "without_curve"]
    assert lost == ([] if len(arms) == 2 else [["lower"]])


@pytest.mark.usefixtures("quick")
def test_arms_that_never_differ_are_pointed_out(tmp_path: Path):
    folder = write_study(tmp_path / "s", num=8)
    same = (folder / "runs/base-seed0/evals.jsonl").read_text()
    (folder / "runs/lower-seed0/evals.jsonl").write_text(same)
    assert content_of(folder)["warnings"] == [{"kind": "equal_curves", "names": ["base", "lower"]}]


@pytest.mark.usefixtures("quick")
def test_labels_over_the_same_compute_are_separate_curves(tmp_path: Path):
    lines = [f"{size},{step},{0.3 + 0.01 * step:.3f}" for size in ("0.5B", "7B") for step in range(1, 13)]
    (tmp_path / "log.csv").write_text("\n".join(["size,gpu_hours,pass_rate", *lines]))
    (view, *_) = content_of(tmp_path / "log.csv")["views"]
    assert [curve["name"] for curve in view["curves"]] == ["size=0.5B", "size=7B"]


@pytest.mark.usefixtures("quick")
def test_arms_evaluated_on_different_prompts_are_not_comparable(tmp_path: Path):
    """The base leads then, though another ends higher."""
    folder = write_study(tmp_path / "s", num=12, plan={"base": "lower"})
    evals = folder / "runs/base-seed0/evals.jsonl"
    evals.write_text(evals.read_text().replace("p0-main", "p1-main"))
    content = content_of(folder)
    assert (content["sets"][0]["lead"]["kind"], content["sets"][0]["lead"]["name"]) == ("alone", "lower")
    assert [pair["kind"] for pair in view(content)["pairs"]] == [PairKind.NOT_COMPARABLE]
    assert (view(content)["straight"], view(content)["standings"]) == ({}, [])
    assert [content["open"][""][-1][key] for key in ("kind", "a", "b")] == ["open_pair", "base", "lower"]
    assert [fact["set"] for fact in content["warnings"] if fact["kind"] == "different_prompts"] == ["main"]


@pytest.mark.usefixtures("quick")
def test_lost_recipe_is_a_warning_in_the_terminal(tmp_path: Path):
    folder = write_study(tmp_path / "s", num=8)
    (folder / "runs/base-seed0/recipe.json").unlink()
    result = CliRunner().invoke(app, ["report", str(folder)])
    assert result.exit_code == 0, result.output
    assert "has no recipe.json: what the run was set to is not known." in result.stderr
    assert result.stdout == f"The report is {folder / 'report.html'}\n"


@pytest.mark.usefixtures("quick")
def test_arms_whose_time_is_distorted_are_compared_by_flops(tmp_path: Path):
    shared = content_of(write_study(tmp_path / "s", shared_device=True, num=8))
    assert (shared["axes"][0]["label"], shared["notes"][0]["cause"]) == ("FLOPs", "shared_device")
    for seed, pace in enumerate((1.0, 2.0)):
        write_run(tmp_path / f"runs/a-seed{seed}", seed=seed, num=8, pace=pace)
    uneven = content_of(tmp_path / "runs")
    assert (uneven["axes"][0]["label"], uneven["notes"][0]["cause"]) == ("FLOPs", "uneven_pace")
    assert uneven["notes"][0]["size"] == pytest.approx(2.0)
    other = content_of(write_study(tmp_path / "t", shared_device=True, num=8, plan={"compute": "tokens"}))
    assert other["axes"][0]["label"] == "tokens"


@pytest.mark.usefixtures("quick")
def test_curves_in_different_units_are_said_to_be(tmp_path: Path):
    logs = [tmp_path / f"{column}.csv" for column in ("gpu_hours", "step")]
    for log in logs:
        rows = [f"{10 * n},{0.3 + 0.3 / (1 + (4 / n) ** 2):.4f}" for n in range(1, 13)]
        log.write_text("\n".join([f"{log.stem},reward", *rows]))
    content = content_of(*logs)
    assert [axis["label"] for axis in content["axes"]] == ["compute (different units)"]
    assert (view(content)["pairs"], [curve["at"] for curve in view(content)["curves"]]) == ([], [[], []])


@pytest.mark.usefixtures("quick")
def test_each_evaluation_set_has_its_own_section(tmp_path: Path):
    content = content_of(write_study(tmp_path / "s", sets=("main", "code"), num=8))
    assert [one["name"] for one in content["sets"]] == ["main", "code"]
    assert {one["set"]: [curve["label"] for curve in one["curves"]] for one in content["views"]} == {
        "main": ["base", "lower"],
        "code": ["base", "lower"],
    }


def test_runs_that_differ_in_their_seed_alone_are_one_arm(tmp_path: Path):
    for seed in (0, 1):
        write_run(tmp_path / f"a-seed{seed}", seed=seed)
    write_run(tmp_path / "b", settings={"loss": {"name": "dapo"}})
    material = gather([tmp_path])
    assert [run.arm for run in material.runs] == ["a", "a", "b"]
    assert material.notes == (Fact(kind="seeds_pooled", values={"runs": ("a-seed0", "a-seed1"), "arm": "a"}),)
    assert [log.frame.words("arm")[0] for log in material.tables] == ["a", "a", "b"]


def test_a_planned_run_that_never_started_is_reported(tmp_path: Path):
    folder = write_study(tmp_path / "s", num=8)
    (folder / "runs" / "lower-seed0").rename(tmp_path / "elsewhere")
    material = gather([folder])
    assert material.faults == ("Not started yet: lower-seed0.",)
    assert len(material.tables) == 1


@pytest.mark.usefixtures("quick")
def test_signals_that_end_where_runs_break_are_warned_of(tmp_path: Path):
    run = write_run(tmp_path / "a", num=8)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines = [json.dumps({**row, "rollout/truncated_frac": 0.2}) for row in rows]
    (run / "metrics.jsonl").write_text("\n".join(lines))
    (fact,) = content_of(run)["warnings"]
    assert (fact["kind"], fact["run"], fact["alarm"]["kind"]) == ("alarm", "a", "truncated")
    assert fact["alarm"]["value"] == pytest.approx(0.2)


def test_nothing_to_report_on_is_one_sentence(tmp_path: Path):
    (tmp_path / "study.json").write_text('{"name": "empty", "runs": []}')
    for path, message in ((tmp_path, "lists no runs"), (tmp_path / "missing.csv", "there is no file")):
        with pytest.raises(InputError, match=message):
            gather([path])


# Other trainers' logs, and the command


@pytest.mark.usefixtures("quick")
def test_a_foreign_log_gets_the_same_report(tmp_path: Path):
    log = str(files("scalerl") / "assets" / "example_runs.csv")
    words = ["report", log, "--x", "gpu_hours", "--by", "recipe", "--seed", "seed", "--start", "first", "--json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert content["title"] == "example_runs"
    assert [(pair["kind"], pair["winner"]) for pair in view(content)["pairs"]] == [("higher_ceiling", "improved")]
    assert content["runs"] == []
