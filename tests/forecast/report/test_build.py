"""Reports on studies, run folders and logs: what is broken is said, and the rest comes out."""

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from known import known
from run_folders import write_run, write_study
from simulate import series
from typer.testing import CliRunner

from scalerl.cli import app
from scalerl.errors import InputError
from scalerl.forecast.curves import Comparison
from scalerl.forecast.logs import Selection
from scalerl.forecast.report import workers
from scalerl.forecast.report.analyse import analyse_compare
from scalerl.forecast.report.build import build_report, write_report
from scalerl.forecast.report.document import Grid, Say, says
from scalerl.forecast.report.options import FitOptions
from scalerl.forecast.report.results import Result
from scalerl.forecast.report.sections import document


def report(*inputs: Path, selection: Selection | None = None, options: FitOptions | None = None) -> Result:
    return build_report(inputs, selection or Selection(), options or FitOptions())


def said(result: Result) -> dict[str, Say]:
    return {each.kind: each for each in says(document(result))}


def table(result: Result, key: str) -> Grid:
    blocks = [block for section in document(result) for block in section.blocks]
    return next(block for block in blocks if isinstance(block, Grid) and block.key == key)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("study") / "two-arms", num=12)


@pytest.fixture(scope="module")
def result(study: Path) -> Result:
    return report(study)


def test_the_better_arm_is_taken(result: Result):
    comparison = result.comparisons.get("")
    assert isinstance(comparison, Comparison)
    assert comparison.winner == "base"
    assert next(iter(said(result))) == "take"
    assert [each.axis for each in result.by_axis[""]] == ["gpu_hours", "flops", "tokens", "step"]
    # Runs on CPUs have no GPU-hours.
    assert said(result)["take"].values["unit"] == "CPU-hours"


def test_every_curve_has_its_back_test(result: Result):
    assert [len(row) for row in table(result, "scores").rows] == [7, 7]
    assert all(curve.backtest is not None for curve in result.curves)


def test_settings_cost_and_signals(result: Result):
    assert table(result, "differences").rows == (("lower", "loss.name", '"cispo"', '"dapo"'),)
    assert [row[0] for row in table(result, "cost").rows] == ["base-seed0", "lower-seed0", "together"]
    assert "loss/entropy" in {getattr(block, "key", "") for section in document(result) for block in section.blocks}


def test_fits_in_workers_change_nothing(study: Path, result: Result, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(workers, "WORTH_ONE", 1)
    assert [curve.fit.params for curve in report(study).curves] == [curve.fit.params for curve in result.curves]


def test_page_is_self_contained(study: Path, tmp_path: Path):
    written = write_report([study], tmp_path)
    html = written.page.read_text(encoding="utf-8")
    assert "src=" not in html
    assert "http://" not in html.replace("http://www.w3.org/2000/svg", "")
    assert {path.name for path in tmp_path.iterdir()} == {"report.html"}


def test_damage_is_said_and_the_rest_is_shown(tmp_path: Path):
    folder = write_study(tmp_path / "study", num=12)
    broken = folder / "runs" / "lower-seed0"
    (broken / "evals.jsonl").unlink()
    (broken / "recipe.json").write_text("{broken")
    result = report(folder)
    assert [curve.name for curve in result.curves] == ["base"]
    problems = " ".join(each.text for each in says(document(result)) if each.kind == "fault_of")
    assert "recipe.json" in problems
    assert "evals.jsonl" in problems


def test_arms_that_never_differ_are_pointed_out(tmp_path: Path):
    for name in ("a", "b"):
        write_run(tmp_path / name, num=12, settings={"description": name, "loss": {"name": name}})
    found = said(report(tmp_path / "a", tmp_path / "b"))
    assert found["equal_curves"].values["names"] == ("a", "b")


def test_arms_on_other_prompts_are_not_compared(tmp_path: Path):
    folders = [write_run(tmp_path / name, num=12, ceiling=0.5 + 0.05 * k, prompts="p" if k < 2 else "q",
                         settings={"loss": {"name": name}}) for k, name in enumerate("abc")]  # fmt: skip
    result = report(*folders)
    assert len(result.curves) == 3
    comparison = result.comparisons[""]
    assert isinstance(comparison, Comparison)
    assert comparison.names == ("a", "b")
    assert said(result)["different_prompts"].values["names"] == ("c",)


def test_distorted_time_is_not_the_axis(tmp_path: Path):
    result = report(write_study(tmp_path / "study", num=12, shared_device=True))
    assert {curve.axis for curve in result.curves} == {"flops"}
    assert "shared_device" in said(result)


def test_each_evaluation_set_has_its_sections(tmp_path: Path):
    result = report(write_study(tmp_path / "study", num=12, sets=("main", "hard")))
    assert result.sets == ["main", "hard"]
    assert set(result.comparisons) == {"main", "hard"}
    keys = [section.key for section in document(result)]
    assert {"answer/main", "answer/hard", "curves/hard"} <= set(keys)


def test_runs_that_differ_in_their_seed_are_one_arm(tmp_path: Path):
    folders = [write_run(tmp_path / f"a-seed{seed}", num=12, seed=seed) for seed in range(2)]
    result = report(*folders)
    (curve,) = result.curves
    assert (curve.name, curve.fit.num_runs) == ("a", 2)
    assert "seeds_joined" in said(result)


def test_a_checkpoint_on_disk_is_named(tmp_path: Path):
    folder = write_run(tmp_path / "a", num=40)
    lines = [json.loads(line) for line in (folder / "evals.jsonl").read_text().splitlines()]
    for row in lines[25:]:
        row["reward"] -= 0.01 * (row["step"] / 10 - 24)
    (folder / "evals.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    for step in (100, 200, 300):
        (folder / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
    found = said(report(folder))
    assert found["checkpoint_saved"].values["step"] == 200
    assert 200 <= found["checkpoint_step"].values["checkpoint"] <= 270


def test_curves_in_different_units_are_not_compared(tmp_path: Path):
    for name, column in (("a", "gpu_hours"), ("b", "tokens")):
        rows = [f"{n},{0.3 + 0.3 * n / (n + 5)}" for n in range(1, 13)]
        (tmp_path / f"{name}.csv").write_text("\n".join([f"{column},reward", *rows]))
    result = report(tmp_path / "a.csv", tmp_path / "b.csv")
    assert result.comparisons == {}
    assert "different_units" in said(result)


def test_nothing_to_report_on_is_one_sentence(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError):
        report(tmp_path / "empty")


def test_a_foreign_log_gets_the_same_report(tmp_path: Path):
    log = Path(str(files("scalerl") / "assets" / "example_runs.csv"))
    result = report(log, selection=Selection(by=("recipe",)))
    assert "take" in said(result)
    page = write_report([log], tmp_path, selection=Selection(by=("recipe",))).page
    assert page.is_file()


def test_warnings_reach_the_terminal(tmp_path: Path):
    folder = write_study(tmp_path / "study", num=12)
    (folder / "runs" / "base-seed0" / "status.json").write_text('{"status": "failed", "reason": "out of memory"}')
    answer: Any = CliRunner().invoke(app, ["report", str(folder), "--out", str(tmp_path)])
    assert answer.exit_code == 0
    assert "out of memory" in answer.stderr


@pytest.mark.parametrize("device, has_price", [("cpu", False), ("NVIDIA H200", True)])
def test_hours_of_cpus_have_no_price(tmp_path: Path, device: str, has_price: bool):
    folder = write_run(tmp_path / "run", num=12)
    (folder / "env.json").write_text(json.dumps({"device": device}))
    made = document(report(folder, options=FitOptions(price=2.0)))
    (cost,) = [block for each in made for block in each.blocks if isinstance(block, Grid) and block.key == "cost"]
    assert ("cost" in cost.heads) is has_price


def test_title_names_few_runs_and_counts_many(tmp_path: Path):
    runs = [write_run(tmp_path / f"r{n}", ceiling=0.5 + 0.02 * n, num=8) for n in range(4)]
    assert report(*runs[:2]).title == "r0 and r1"
    assert report(*runs).title == "4 runs"


# What a study fits and holds out --------------------------------------------------------------------------------------


def windowed(folder: Path, **plan: Any) -> Result:
    return report(write_study(folder, num=24, plan={"compute": "gpu_hours", **plan}))


def num_scored(result: Result) -> list[int]:
    return [curve.backtest.num_points for curve in result.curves if curve.backtest is not None]


def test_a_study_says_which_part_is_scored(tmp_path: Path):
    """A run of 24 evaluations, evenly spaced."""
    assert num_scored(windowed(tmp_path / "default", fit={"until": 1.0})) == [12, 12]
    assert num_scored(windowed(tmp_path / "early", fit={"until": 0.25})) == [18, 18]
    assert num_scored(windowed(tmp_path / "from", fit={"until": 0.5}, holdout={"from": 0.75})) == [6, 6]
    late = windowed(tmp_path / "late", fit={"until": 1.0}, holdout={"from": 0.75})
    assert num_scored(late) == [6, 6]
    assert [known(curve.tested).share for curve in late.curves] == pytest.approx([0.75, 0.75])


def test_a_study_may_say_it_in_amounts_of_compute(tmp_path: Path):
    largest = float(windowed(tmp_path / "whole").curves[0].series.compute.max())
    until = windowed(tmp_path / "until", fit={"until": 1.0, "until_compute": 0.25 * largest})
    assert num_scored(until) == [18, 18]
    held = windowed(tmp_path / "from", fit={"until": 0.5}, holdout={"from_compute": 0.75 * largest})
    assert num_scored(held) == [6, 6]


def test_amounts_are_on_the_axis_of_the_study(tmp_path: Path):
    whole = windowed(tmp_path / "whole").curves[0].series
    folder = write_study(
        tmp_path / "flops", num=24, plan={"compute": "gpu_hours", "fit": {"until_compute": 0.25 * whole.compute.max()}}
    )
    assert num_scored(report(folder, selection=Selection(x="flops"))) == [18, 18]


def test_an_amount_that_is_skipped_is_on_the_axis_of_the_study(tmp_path: Path):
    whole = windowed(tmp_path / "whole").curves[0].series
    amount = 0.25 * float(whole.compute.max())
    plan = {"compute": "gpu_hours", "fit": {"skip_before_compute": amount}}
    result = report(write_study(tmp_path / "flops", num=24, plan=plan), selection=Selection(x="flops"))
    for curve in result.curves:
        assert curve.fit.compute.tolist() == curve.series.compute[curve.series.axes["gpu_hours"] >= amount].tolist()


@pytest.mark.parametrize("ends", [{"skip_before": 700.0, "fit_until": 2000.0}, {"skip_before": "25%"}])
def test_every_axis_has_the_evaluations_that_are_fitted_on_the_first(ends: dict[str, Any], monkeypatch):
    """They are chosen by an amount, or a share, of one axis: on the others as many are fitted, and the same ones."""
    runs = []
    for name, pace, ceiling in (("a", 1e6, 0.6), ("b", 4e6, 0.65)):
        made = series(name, ceiling=ceiling, reach=3000.0)
        runs.append(replace(made, axes={"gpu_hours": made.compute, "tokens": pace * made.compute**1.3}))
    fitted = []
    own = FitOptions.compare
    monkeypatch.setattr(FitOptions, "compare", lambda *given: fitted.append(given[1]) or own(*given))
    result = analyse_compare(runs, FitOptions(**ends), None)
    assert [each.axis for each in result.by_axis[""]] == ["gpu_hours", "tokens"]
    hours, tokens = fitted
    for name, pace in (("a", 1e6), ("b", 4e6)):
        assert len(hours[name].compute) < 24
        assert tokens[name].compute == pytest.approx(pace * hours[name].compute ** 1.3)


def test_a_share_that_is_skipped_is_of_the_whole_run_in_a_back_test_too(tmp_path: Path, monkeypatch):
    from scalerl.forecast.report import analyse

    firsts = []
    own = analyse.score
    monkeypatch.setattr(analyse, "score", lambda fit, *points: firsts.append(fit.compute.min()) or own(fit, *points))
    result = windowed(tmp_path / "skip", fit={"skip_before": 0.25, "until": 0.5})
    for curve in result.curves:
        largest = float(curve.series.compute.max())
        assert curve.fit.compute.min() == pytest.approx(0.25 * largest)
    assert firsts == pytest.approx([curve.fit.compute.min() for curve in result.curves])
