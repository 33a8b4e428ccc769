"""The analysis of the real model's study (benchmarks/real_study.py) on made runs whose truth is known."""

import gzip
import importlib
import json
import math
import re
import runpy
from pathlib import Path

import numpy as np
import pytest

from scalerl.cli import app
from scalerl.runfolder import store
from scalerl.study.plan import make_plan
from scalerl.study.spec import load_study
from scalerl.training.tasks.build import build_task, build_tasks

real_study = importlib.import_module("real_study")
EXAMPLE = Path(__file__).parents[1] / "examples" / "real-model"

NUM_PROBLEMS, SAMPLES, NUM_EVALS = 1000, 4, 20
END = 0.25
ARMS = {"scalerl": (0.7, 0.03), "same": (0.7, 0.03), "slow": (0.7, 0.06), "low": (0.55, 0.03)}
"""Ceiling and midpoint of each arm, in GPU-hours."""


def truth(arm: str, compute: float) -> float:
    ceiling, midpoint = ARMS[arm]
    return 0.35 + (ceiling - 0.35) / (1 + (midpoint / compute) ** 1.4) if compute else 0.35


def make_run(folder, arm: str, seed: int, share: float = 1.0) -> None:
    """Write a run's folder as the trainer does: problems differ in difficulty, and are the same for all runs."""
    store.create_run(folder)
    store.write_json(folder / store.RECIPE, {"seed": seed, "model": {"path": "/some/where/model.gguf"}})
    store.write_json(folder / store.ENV, {"device": "none", "platform": "somebody's"})
    hard = np.random.default_rng(0).normal(0, 1, NUM_PROBLEMS)
    noise = np.random.default_rng([seed, *arm.encode()])
    for place in range(round(share * NUM_EVALS) + 1):
        compute = END * place / NUM_EVALS
        spent = {"gpu_hours": compute, "tokens": 1e9 * compute, "flops": 1e18 * compute}
        reward = truth(arm, compute)
        solved = 1 / (1 + np.exp(-(hard + math.log(reward / (1 - reward)))))
        solved *= reward / solved.mean()
        right = noise.binomial(SAMPLES, np.clip(solved, 0, 1))
        row = {"step": 10 * place, "attempt": 1, "set": "file", **spent, "num_samples": NUM_PROBLEMS * SAMPLES}
        row |= {"reward": right.mean() / SAMPLES, "num_correct": right.tolist(), "prompts_hash": "same"}
        store.append_row(folder / store.EVALS, row)
        store.append_row(folder / store.METRICS, {"step": 10 * place, "attempt": 1, **spent, "reward/mean": 0.5})


@pytest.fixture(scope="module", autouse=True)
def lease(tmp_path_factory):
    """A lease's folder with two seeds of each arm, and forecasts of ScaleRL's that were sealed while it trained."""
    out = tmp_path_factory.mktemp("lease")
    for arm in ARMS:
        for seed in range(2):
            make_run(out / "runs" / f"{arm}-seed{seed}", arm, seed)
    for seed, share in ((1, "half"),):
        run = out / "then" / share / f"scalerl-seed{seed}"
        make_run(run, "scalerl", seed, share=real_study.SHARES[share])
        file = out / "sealed" / share / f"{run.name}-{share}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        until = ("--fit-until", f"{real_study.SHARES[share] * END:.17g}", "--at", f"{END}")
        app(["forecast", str(run), "--x", "gpu_hours", *until, "--seal", str(file)], standalone_mode=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(real_study, "HERE", out / "kept")
        real_study.record(str(out))
        yield out


def table(name: str, *words: str) -> dict[str, list[str]]:
    """Return the cells of a table by its first column."""
    rows = [cells_of(line) for line in real_study.TABLES[name](*words)][2:]
    return {name.strip("*"): cells for name, *cells in rows}


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_what_is_recorded_is_the_same_each_time(lease):
    file = lease / "kept" / "scalerl-seed0" / "evals.jsonl.gz"
    first = file.read_bytes()
    real_study.record(str(lease))
    assert file.read_bytes() == first
    with gzip.open(file.with_name("metrics.csv.gz"), "rt") as lines:
        assert lines.readline().startswith("step,gpu_hours,tokens,flops,reward/mean")
    assert json.loads(file.with_name("recipe.json").read_text()) == {"seed": 0, "model": {"path": "model.gguf"}}
    assert json.loads(file.with_name("env.json").read_text()) == {"device": "none"}


def test_kept_columns_are_those_that_a_run_writes():
    table = (Path(__file__).parents[1] / "docs" / "math.md").read_text().partition("### Metrics\n")[2]
    written = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)?)`", table))
    assert set(real_study.METRICS) <= written


def test_ends_are_equivalent_or_different_as_they_were_made():
    verdicts = {arm: cells[-1] for arm, cells in table("ends").items()}
    assert verdicts["same"] == "equivalent"
    assert verdicts["low"] == "different"


def test_an_interval_of_ends_holds_the_truth():
    """Over studies whose runs scatter by a known amount; problems are the same for all, as in the study."""
    generator = np.random.default_rng(1)
    hard = np.clip(generator.normal(0.5, 0.2, NUM_PROBLEMS), 0, 1)
    held = []
    for _ in range(200):
        arms = {}
        for arm, gain in (("scalerl", 0.0), ("other", 0.02)):
            of_runs = [gain + generator.normal(0, 0.01) for _ in range(3)]
            arms[arm] = [generator.binomial(12, np.clip(hard + each, 0, 1)) / 12 for each in of_runs]
        found = real_study.differences(arms)["other"]
        held.append(found.low <= 0.02 <= found.high)
    assert np.mean(held) >= 0.88


def test_one_run_of_each_arm_shows_nothing():
    shares = np.full(NUM_PROBLEMS, 0.5)
    found = real_study.differences({"scalerl": [shares], "other": [shares - 0.2]})["other"]
    assert math.isnan(found.low)
    assert found.verdict == "not shown"


def test_ceilings_differ_where_they_do():
    found = table("ceilings")
    assert found["low"][-1] == "different"
    assert float(found["low"][2]) < 0.05


def test_ratios_of_compute_are_those_of_the_midpoints():
    ratio = float(table("ratios")["slow"][1].split()[0])
    assert ratio == pytest.approx(2.0, rel=0.15)


def test_sealed_forecasts_are_scored_beside_rivals():
    found = list(real_study.forecasts())
    assert sum("too early" in line for line in found) == 8 * 3 - 1
    [median] = [cells_of(line) for line in found if line.startswith("| median error | half")]
    assert float(median[2]) < 0.03
    assert median[4] == "1 of 1"
    # The paper's grid, the last value, least squares and the seed before.
    assert all(float(error) < 0.05 for error in median[5:])


def test_the_end_that_is_scored_was_not_seen_when_it_was_sealed():
    [run] = [run for run in real_study.recorded() if run.name == "scalerl-seed1"]
    [curve] = run.sealed["half"]["curves"]
    assert curve["largest_compute"] <= END / 2
    assert run.until(run.sealed["half"]["options"]["fit_until"])[-1]["gpu_hours"] == curve["largest_compute"]


def test_who_is_best_is_said_before_the_end():
    cells = table("best")
    assert float(cells["low"][2]) > 0.9
    assert cells["low"][3].startswith("higher")


def test_the_picture_is_drawn(tmp_path):
    real_study.draw(str(tmp_path / "curves.png"))
    assert (tmp_path / "curves.png").stat().st_size > 20_000


def test_recipe_of_the_study_trains_on_problems_as_written(tmp_path):
    """Problems, recipe and study of the example fit together; a run answers all four sets."""
    write_all = runpy.run_path(str(EXAMPLE / "problems.py"))["write_all"]
    rows = {
        "gsm8k": [{"question": f"What is {n} plus 1?", "answer": f"One more.\n#### {n + 1}"} for n in range(40)],
        "math": [{"problem": f"What is $\\frac{{{n}}}{{2}}$?", "answer": str(n), "math500": n < 3} for n in range(40)],
    }
    rows["math"].append({"problem": "Prove it.", "answer": "", "math500": True})
    files = {}
    for name, each in rows.items():
        files[name] = tmp_path / f"{name}.jsonl"
        files[name].write_text("".join(json.dumps(row) + "\n" for row in each))
    made = write_all(tmp_path / "problems", (files["gsm8k"],) * 2, (files["math"],) * 2)
    assert made == {"train": 80, "gsm8k-test": 40, "math500": 3, "gsm8k-fresh": 404}
    for file in EXAMPLE.glob("*.toml"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    of_recipes = ["model.path=none", "evaluation.num_prompts=10"]
    plan = make_plan(*load_study(tmp_path / "study.toml"), of_recipes, gpu=False)
    assert [run.name for run in plan.runs][:2] == ["scalerl-seed0", "baseline-seed0"]
    assert set(real_study.TEST_SETS) == set(plan.runs[0].recipe.evaluation.sets)
    pilot = make_plan(*load_study(tmp_path / "pilot.toml"), of_recipes, gpu=False)
    rates = {run.arm: (run.recipe.optimizer.lr, run.recipe.weights.name) for run in pilot.runs}
    assert rates["scalerl-3e-6"] == (3e-6, "prompt")
    assert rates["baseline-1e-5"] == (1e-5, "sample")
    assert len(rates) == 6
    recipe = plan.runs[0].recipe
    task = build_tasks(recipe.task, recipe.tasks, recipe.evaluation)["main"]
    assert (len(task.training), len(task.evaluation)) == (70, 10)
    sets = [build_task(each, recipe.evaluation) for each in recipe.evaluation.sets.values()]
    assert [len(each.evaluation) for each in sets] == [40, 3, 404]
    assert all("\\boxed{{}}" in each.prompt.template for each in [task, *sets])
