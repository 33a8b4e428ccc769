"""Rates from tables and runs, paces against sums by hand, and what the command prints."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from scalerl.cli import app
from scalerl.errors import UsageError
from scalerl.recipe.load import load_recipe
from scalerl.runfolder import store
from scalerl.training.run.simulate import Rates, read_rates, splits

RATES = """
description = "for tests"
slots = 32
decode_s = [[1, 0.01], [32, 0.03]]
train_tokens_per_s = 2000
push_s = 0.1
length_mean = 20
length_spread = 0.5
"""
SMALL = ("pipeline.groups_per_batch=4", "pipeline.completions_per_group=4", "pipeline.max_lag=3")


@pytest.fixture
def rates(tmp_path: Path) -> Path:
    path = tmp_path / "rates.toml"
    path.write_text(RATES)
    return path


def test_lengths_are_those_of_a_cut_log_normal():
    rng = np.random.default_rng(0)
    drawn = np.exp(np.log(1000) - 0.5**2 / 2 + 0.5 * rng.standard_normal(200_000))
    lengths = Rates(slots=1, decode_s=((1.0, 1.0),), train_tokens_per_s=1.0, length_mean=1000, length_spread=0.5)
    assert lengths.length(1500) == pytest.approx(np.minimum(drawn, 1500).mean(), rel=0.01)
    assert lengths.longest_of(16, 10**9) == pytest.approx(np.median(drawn.reshape(-1, 16).max(axis=1)), rel=0.1)
    assert lengths.longest_of(10**6, 1500) == 1500


@pytest.mark.parametrize(
    "more, schemes",
    [
        ((), ["PipelineRL-3", "PPO-off-policy-3"]),
        (("pipeline.waits_for=groups",), ["PipelineRL-3 (waits for every group)", "PPO-off-policy-3"]),
        (("pipeline.max_lag=0",), ["PipelineRL-1", "synchronous"]),
        (
            ("pipeline.max_lag=2", "pipeline.push_every=3", "pipeline.drain=true"),
            ["PipelineRL-3", "PPO-off-policy-3"],
        ),
    ],
)
def test_schemes_are_both_and_the_recipes_own(rates, more, schemes):
    assert list(splits(load_recipe("tiny-cpu", [*SMALL, *more]), read_rates(rates), 2)) == schemes


def test_one_gpu_takes_turns(tmp_path):
    path = tmp_path / "rates.toml"
    # A batch of 16 completions of 20 tokens: 20 tokens of 0.1 s with all 16 slots in use; a step takes 1 + 0.5 s.
    content = "slots = 16\ndecode_s = [[16, 0.1]]\ntrain_tokens_per_s = 640\ntrain_fixed_s = 1.0\n"
    path.write_text(content + "push_s = 0.25\nlength_mean = 20\nlength_spread = 0\n")
    recipe = load_recipe("tiny-cpu", SMALL)
    for scheme, (split,) in splits(recipe, read_rates(path), 1).items():
        assert (split.generators, split.generator_gpus, split.learner_gpus) == (0, 0, 1)
        step_s = 2.0 + 1.5 + 0.25 / (3 if scheme.startswith("PPO") else 1)
        assert 3600 / split.steps_per_hour == pytest.approx(step_s)
        assert split.learner_idle == pytest.approx(1 - 1.5 / step_s)
    # With a GPU each they overlap, and sampling takes longer.
    beside = splits(recipe, read_rates(path), 2)["PipelineRL-3"][0]
    assert 3600 / beside.steps_per_hour == pytest.approx(2.0)


# Steps per hour by an earlier event simulation of the whole loop, with examples/rates_8b.toml.
@pytest.mark.parametrize(
    "gpus, generators, scheme, steps_per_hour, within",
    [
        (80, 45, "PipelineRL-8", 126.25, 0.03),
        (80, 25, "PipelineRL-8", 93.01, 0.03),
        (80, 43, "PPO-off-policy-8", 62.74, 0.1),
        (8, 4, "PipelineRL-8", 15.34, 0.03),
        (8, 6, "PipelineRL-8", 10.26, 0.03),
        (8, 4, "PPO-off-policy-8", 8.396, 0.03),
        (1, 0, "PipelineRL-8", 2.236, 0.03),
        (1, 0, "PPO-off-policy-8", 2.224, 0.03),
    ],
)
def test_paces_are_near_those_of_an_event_simulation(gpus, generators, scheme, steps_per_hour, within):
    table = read_rates(Path(__file__).parents[3] / "examples" / "rates_8b.toml")
    (split,) = splits(load_recipe("scalerl"), table, gpus, generators)[scheme]
    assert split.steps_per_hour == pytest.approx(steps_per_hour, rel=within)


def write_run(folder: Path, *, fleet: bool, parts: Any = None, **regime: Any) -> Path:
    """Steps of 0.352 s for 16 completions of 22 tokens, a push of 0.25 s, and 2 s of sampling."""
    store.create_run(folder)
    pipeline = {"groups_per_batch": 4, "completions_per_group": 4, "max_lag": 3, "push_every": 1, "drain": False}
    pipeline |= regime
    rollout = {"slots": 16, "generators": 2 if fleet else 0}
    store.write_json(folder / store.RECIPE, {"pipeline": pipeline, "rollout": rollout} | (parts or {}))
    store.write_json(folder / store.ENV, {"device": "cpu", "slots": 16})
    for step in range(1, 41):
        row = {"step": step, "attempt": 1, "rollout/length_mean": 22.0, "time/step_s": 0.352, "time/wait_s": 2.0}
        row["time/push_s"] = 0.25 if step % pipeline["push_every"] == 0 else 0.0
        if fleet:
            row |= {"generators/busy_s": 1.5, "generators/active_mean": 6.0, "generators/slots": 8}
        store.append_row(folder / store.METRICS, row)
    return folder


def test_rates_of_runs(tmp_path):
    alone, fleet = (read_rates(write_run(tmp_path / str(num), fleet=bool(num))) for num in (0, 1))
    assert (alone.slots, fleet.slots) == (16, 8)
    assert alone.train_tokens_per_s == fleet.train_tokens_per_s == pytest.approx(1000)
    assert alone.decode_token_s(16) == pytest.approx(2.0 / 22), "2 s for 22 tokens of 16 at once"
    assert fleet.decode_token_s(6) == pytest.approx(1.5 * 6 / (8 * 22)), "each samples half of the batch, 6 at once"
    recipe = load_recipe("tiny-cpu", SMALL)
    (split,) = splits(recipe, alone, 1)["PipelineRL-3"]
    assert 3600 / split.steps_per_hour == pytest.approx(2.0 + 0.352 + 0.25, rel=0.02), "the run's own pace"
    drained = write_run(tmp_path / "drained", fleet=False, max_lag=3, push_every=4, drain=True)
    assert read_rates(drained).push_s == pytest.approx(0.25, rel=0.1)
    vllm = {"slots": 16, "engine": "vllm", "gpus_per_generator": None, "vllm": {"tensor_parallel": 2}}
    ranks = {"learner": {"ranks": 4}, "rollout": vllm}
    of_ranks = read_rates(write_run(tmp_path / "ranks", fleet=True, parts=ranks))
    assert (of_ranks.gpus_per_generator, of_ranks.train_tokens_per_s) == (2, pytest.approx(250))
    with pytest.raises(UsageError, match="is not a run folder with at least 8 steps"):
        read_rates(tmp_path)


def test_reading_between_turns_takes_time(tmp_path):
    run = write_run(tmp_path / "run", fleet=False)
    rows = store.read_metrics(run)
    (run / store.METRICS).unlink()
    for row in rows:
        talked = {"rollout/turns_mean": 4.0, "rollout/tool_s": 3.2, "time/tools_s": 0.5 * row["step"]}
        store.append_row(run / store.METRICS, row | talked)
    rates = read_rates(run)
    assert (rates.turns, rates.tool_s) == (4.0, pytest.approx(3.2 / 16 / 4))
    assert rates.decode_token_s(16) == pytest.approx(1.5 / 22), "half a second of 2 was spent on tools alone"

    def step_s(**changes: float) -> float:
        (split,) = splits(load_recipe("tiny-cpu", SMALL), rates.model_copy(update=changes), 1)["PipelineRL-3"]
        return 3600 / split.steps_per_hour

    quick = step_s(tool_s=0.0)
    assert step_s(tool_s=0.0, turn_s=0.01) == pytest.approx(quick + 0.01 * 3 * 16), "three further turns of each"
    assert quick < step_s(tool_s=2.0) < step_s(tool_s=4.0), "too few conversations are left to fill the slots"


@pytest.mark.parametrize(
    "content, message",
    [
        (RATES.replace("slots = 32", ""), "slots is not set, but the table needs it"),
        (RATES.replace("push_s = 0.1", "pushes = 1"), "pushes is not a setting of the table, which has description,"),
        (RATES.replace("slots = 32", "slots ="), "is not valid TOML"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_bad_tables_are_refused_in_a_sentence(tmp_path, content, message):
    path = tmp_path / "rates.toml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match=rf"^--rates .*{message}"):
        read_rates(path)


@pytest.mark.parametrize("gpus, generators", [(2, 2), (2, 0), (1, 1)])
def test_impossible_splits_are_refused(rates, gpus, generators):
    with pytest.raises(UsageError, match=f"^--gpus {gpus} cannot be split into"):
        splits(load_recipe("tiny-cpu"), read_rates(rates), gpus, generators)


def test_command_prints_tables_and_json(rates, tmp_path):
    curve = tmp_path / "curve.csv"
    lines = [f"{step},{0.2 + 0.6 / (1 + (60 / step) ** 2):.4f}" for step in range(10, 400, 10)]
    curve.write_text("\n".join(["step,reward", *lines]) + "\n")
    words = ["simulate", "tiny-cpu", "--gpus", "4", "--rates", str(rates), "--curve", str(curve)]
    assert isinstance(CliRunner().invoke(app, [*words[:-2], "--reach", "0.5"]).exception, UsageError)
    words += ["--reach", "0.5", *(word for change in SMALL for word in ("--set", change))]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "reward 0.5, PipelineRL-3: " in result.output
    scheme = json.loads(CliRunner().invoke(app, [*words, "--json"]).output)["schemes"]["PipelineRL-3"]
    assert scheme["best"]["generators"] + scheme["best"]["learner_gpus"] == 4
    assert len(scheme["splits"]) == 3
    # 0.5 is half of the rise, at 60 steps.
    days, low, high = scheme["days"]
    assert days == pytest.approx(60 * scheme["best"]["gpu_hours_per_step"] / 4 / 24, rel=0.1)
    assert low < days < high
