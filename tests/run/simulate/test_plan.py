"""Rates from tables and runs, the search for the best split, and what the command prints."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from scalerl import store
from scalerl.cli import app
from scalerl.config import load_recipe
from scalerl.errors import UsageError
from scalerl.run.simulate.plan import _search, make_plan
from scalerl.run.simulate.rates import LengthsSettings, RatesSettings, read_rates
from scalerl.types import derive_seed

RATES = """
description = "for tests"
slots = 32
decode_s = [[1, 0.01], [32, 0.03]]
train_tokens_per_s = 2000
push_s = 0.1
[lengths]
mean = 20
spread = 0.5
"""
SMALL = ("pipeline.groups_per_batch=4", "pipeline.completions_per_group=4", "pipeline.max_lag=3")


@pytest.fixture
def rates(tmp_path: Path) -> Path:
    path = tmp_path / "rates.toml"
    path.write_text(RATES)
    return path


def test_lengths_have_the_mean_and_spread_asked_for():
    lengths = LengthsSettings(mean=1000.0, spread=0.5)
    drawn = np.array([lengths.draw(derive_seed("length", number), 10**9) for number in range(20_000)])
    assert drawn.mean() == pytest.approx(1000, rel=0.02)
    assert np.log(drawn).std() == pytest.approx(0.5, rel=0.03)
    assert max(lengths.draw(derive_seed("length", number), 1500) for number in range(500)) == 1500
    values = LengthsSettings(values=(3.0, 5.0, 7.0))
    assert {values.draw(derive_seed("length", number), 100) for number in range(100)} == {3, 5, 7}


def test_search_finds_the_best_of_all_splits(rates):
    recipe = load_recipe("tiny-cpu", SMALL)
    plan = make_plan(recipe, read_rates(rates), 14, steps=16)
    for regime in plan.regimes:
        every = [
            make_plan(recipe, read_rates(rates), 14, generators=num, steps=16).regimes[plan.regimes.index(regime)].best
            for num in range(1, 14)
        ]
        fastest = max(split.steps_per_hour for split in every)
        assert regime.best.steps_per_hour == pytest.approx(fastest, rel=0.02)


@pytest.mark.parametrize("peak", [0, 1, 37, 120, 198])
def test_search_tries_few_of_many_splits(peak):
    tried: list[int] = []

    def split_of(learner_gpus: int):
        tried.append(learner_gpus)
        return SimpleNamespace(steps_per_hour=1 / (1 + abs(learner_gpus - peak)))

    _search(list(range(199)), split_of)  # pyright: ignore[reportArgumentType]
    assert peak in tried
    assert len(tried) == len(set(tried)) < 30


def test_regimes_are_both_schemes_and_the_recipes_own(rates):
    def names(*more: str) -> list[str]:
        plan = make_plan(load_recipe("tiny-cpu", [*SMALL, *more]), read_rates(rates), 2, steps=8)
        return [regime.name for regime in plan.regimes]

    assert names() == ["PipelineRL-3", "PPO-off-policy-3"]
    assert names("pipeline.max_lag=0") == ["PipelineRL-1", "synchronous"]
    assert names("pipeline.max_lag=2", "pipeline.push_every=3", "pipeline.drain=true") == [
        "PipelineRL-3",
        "PPO-off-policy-3",
    ]


def test_overlapping_beats_alternating(rates):
    plan = make_plan(load_recipe("tiny-cpu", SMALL), read_rates(rates), 8, steps=24)
    pipelined, drained = (regime.best for regime in plan.regimes)
    assert pipelined.steps_per_hour > 1.2 * drained.steps_per_hour
    assert pipelined.simulated.generator_idle < drained.simulated.generator_idle


def test_one_gpu_takes_turns(tmp_path):
    path = tmp_path / "rates.toml"
    # A batch of 16 completions of 20 tokens: 5 chunks of 0.4 s with all 16 slots in use; a step takes 1 + 0.5 s.
    content = "slots = 16\ndecode_s = [[16, 0.1]]\nchunk = 4\ntrain_tokens_per_s = 640\ntrain_fixed_s = 1.0\n"
    path.write_text(content + "push_s = 0.25\ncopy_s = 0.25\n[lengths]\nvalues = [20]\n")
    plan = make_plan(load_recipe("tiny-cpu", SMALL), read_rates(path), 1, steps=24)
    for regime in plan.regimes:
        best = regime.best
        assert (best.generators, best.generator_gpus, best.learner_gpus, best.gpus) == (0, 0, 1, 1)
        push_s = 0.25 / regime.pipeline.push_every
        assert 3600 / best.steps_per_hour == pytest.approx(2.0 + 1.5 + push_s)
        assert best.simulated.learner_idle == pytest.approx(1 - 1.5 / (3.5 + push_s))
    beside = make_plan(load_recipe("tiny-cpu", SMALL), read_rates(path), 2, steps=24).regimes[0].best
    assert 3600 / beside.steps_per_hour < 2.5


def write_run(folder: Path, *, fleet: bool, parts: Any = None, **regime: Any) -> Path:
    """Steps of 1 s + 1 ms per token; a chunk of 4 tokens takes 0.1 s + 1 ms per active completion."""
    store.create_run(folder)
    pipeline = {"groups_per_batch": 4, "completions_per_group": 4, "max_lag": 3, "push_every": 1, "drain": False}
    pipeline |= regime
    store.write_json(folder / store.RECIPE, {"pipeline": pipeline, "rollout": {"slots": 16}} | (parts or {}))
    store.write_json(folder / store.ENV, {"device": "cpu", "slots": 16})
    tokens = 0
    for step in range(1, 41):
        length, active = 20.0 + step % 5, 4 + step % 12
        tokens += int(16 * length)
        row = {"step": step, "attempt": 1, "tokens": tokens, "rollout/length_mean": length}
        row |= {"time/step_s": 1 + 0.001 * 16 * length, "time/push_s": 0.25, "time/wait_s": 2.0}
        if fleet:
            row |= {"generators/chunks": 10, "generators/busy_s": 10 * (0.1 + 0.001 * active)}
            row |= {"generators/active_mean": active, "generators/slots": 16, "generators/copy_s": 0.05}
        store.append_row(folder / store.METRICS, row)
    return folder


def test_rates_of_a_run_with_generators(tmp_path):
    rates = read_rates(write_run(tmp_path / "run", fleet=True))
    assert (rates.slots, rates.chunk) == (16, 4)
    assert rates.train_fixed_s == pytest.approx(1.0)
    assert rates.train_tokens_per_s == pytest.approx(1000)
    assert rates.push_s == pytest.approx(0.25)
    assert rates.copy_s == pytest.approx(0.05)
    assert rates.decode_token_s(16) == pytest.approx((0.1 + 0.016) / 4)
    assert rates.decode_token_s(4) == pytest.approx((0.1 + 0.004) / 4)
    assert rates.lengths.values == pytest.approx((22.0,), rel=0.02)


def test_rates_of_ranks_are_those_of_one_gpu(tmp_path):
    vllm = {"slots": 16, "engine": "vllm", "gpus_per_generator": None, "vllm": {"tensor_parallel": 2}}
    parts = {"learner": {"ranks": 4}, "rollout": vllm}
    rates = read_rates(write_run(tmp_path / "run", fleet=True, parts=parts))
    assert rates.gpus_per_generator == 2
    assert rates.train_tokens_per_s == pytest.approx(250)
    # The learner of the run itself takes as long as it took.
    assert rates.durations(4).step_s(0, 320) == pytest.approx(1.32)
    parts["rollout"] = vllm | {"gpus_per_generator": 0}
    assert read_rates(write_run(tmp_path / "cpus", fleet=True, parts=parts)).gpus_per_generator == 1


def test_rates_of_a_run_in_one_process(tmp_path):
    rates = read_rates(write_run(tmp_path / "run", fleet=False))
    # 2 s for 16 completions of 22 tokens, which take 6 chunks of 4; 16 slots are in use.
    assert rates.decode_token_s(16) == pytest.approx(2 / 24, rel=0.02)
    # The same run, simulated: 2 s of sampling, a step and a push in turns.
    recipe = load_recipe("tiny-cpu", ["pipeline.groups_per_batch=4", "pipeline.completions_per_group=4"])
    best = make_plan(recipe, rates, 1).regimes[0].best
    assert 3600 / best.steps_per_hour == pytest.approx(2.0 + 1 + 0.016 * 22 + 0.25, rel=0.02)


def test_rates_of_a_drained_run_give_its_pace(tmp_path):
    drained = {"max_lag": 3, "push_every": 4, "drain": True}
    folder = write_run(tmp_path / "run", fleet=False, **drained)
    rates = read_rates(folder)
    settings = [f"pipeline.{name}={str(value).lower()}" for name, value in drained.items()]
    recipe = load_recipe("tiny-cpu", [*SMALL[:2], *settings])
    plan = make_plan(recipe, rates, 1)
    paces = {regime.name: 3600 / regime.best.steps_per_hour for regime in plan.regimes}
    # A round of 4 x 16 completions takes 4 x 6 chunks in 16 slots, and 2 s per step.
    assert rates.decode_token_s(16) == pytest.approx(2 / 24, rel=0.02)
    assert paces["PPO-off-policy-4"] == pytest.approx(2.0 + 1 + 0.016 * 22 + 0.25 / 4, rel=0.02)


@pytest.mark.parametrize(
    "change, message",
    [
        ("slots = 32", "slots: field required"),
        ("mean = 20", "lengths.mean is not set"),
        ("push_s = 0.1", "pushes: extra inputs"),
        ("slots = 32", "cannot be read"),
    ],
)
def test_bad_tables_are_refused_in_a_sentence(rates, change, message):
    new = {"pushes: extra inputs": "pushes = 1", "cannot be read": "slots ="}.get(message, "")
    rates.write_text(RATES.replace(change, new))
    with pytest.raises(UsageError, match=message):
        read_rates(rates)


def test_files_of_rates_that_cannot_be_read_are_named(rates, tmp_path):
    rates.write_bytes(b"\xef\xbb\xbf" + RATES.encode())
    assert read_rates(rates).slots == 32
    rates.write_bytes(RATES.encode() + b"# \xe9")
    with pytest.raises(UsageError, match=r"^--rates .* is not UTF-8 text \(byte 0xe9 in line \d+\): save it as UTF-8$"):
        read_rates(rates)
    with pytest.raises(UsageError, match=r"^--rates .*nowhere.toml cannot be read: No such file or directory$"):
        read_rates(tmp_path / "nowhere.toml")


@pytest.mark.parametrize(
    "words, message",
    [
        (["--gpus", "2", "--generators", "2"], "leaves 0 of --gpus 2"),
        (["--gpus", "2", "--generators", "0"], "--generators 0 is for one GPU"),
        (["--gpus", "1", "--generators", "1"], "--gpus 1 is too few"),
        (["--gpus", "4", "--plot", "plan.html"], "drawn as .png or .svg"),
    ],
)
def test_impossible_layouts_are_refused(rates, words, message):
    result = CliRunner().invoke(app, ["simulate", "tiny-cpu", "--rates", str(rates), *words])
    assert isinstance(result.exception, ValueError)
    assert message in str(result.exception)


def test_command_prints_a_table_json_and_a_picture(rates, tmp_path):
    curve = tmp_path / "curve.csv"
    steps = range(10, 400, 10)
    lines = [f"{step},{0.2 + 0.6 / (1 + (60 / step) ** 2):.4f}" for step in steps]
    curve.write_text("\n".join(["step,reward", *lines]) + "\n")
    picture = tmp_path / "plan.png"
    words = ["simulate", "tiny-cpu", "--gpus", "4", "--rates", str(rates), "--steps", "12", "--curve", str(curve)]
    words += [word for change in SMALL for word in ("--set", change)]
    result = CliRunner().invoke(app, [*words, "--plot", str(picture)])
    assert result.exit_code == 0, result.output
    assert "PipelineRL-3" in result.output
    assert "reward, PPO-off-policy-3" in result.output
    assert picture.stat().st_size > 5000
    printed = json.loads(CliRunner().invoke(app, [*words, "--json"]).output)
    best = printed["regimes"][0]["best"]
    assert best["generators"] + best["learner_gpus"] == 4
    rewards = [row["reward"] for row in printed["regimes"][0]["reward"]]
    assert rewards == sorted(rewards)
    assert 0.2 < rewards[0] < rewards[-1] < 0.85


def test_command_simulates_one_gpu(rates, tmp_path):
    words = ["simulate", "tiny-cpu", "--gpus", "1", "--rates", str(rates), "--steps", "12"]
    words += [word for change in SMALL for word in ("--set", change)]
    result = CliRunner().invoke(app, [*words, "--plot", str(tmp_path / "plan.png")])
    assert result.exit_code == 0, result.output
    assert "1 GPU that samples and trains in turns" in result.output
    printed = json.loads(CliRunner().invoke(app, [*words, "--generators", "0", "--json"]).output)
    assert printed["regimes"][0]["best"]["generators"] == 0
    assert printed["regimes"][0]["best"]["learner_gpus"] == 1


def test_example_table_is_valid():
    rates = read_rates(Path(__file__).parents[3] / "examples" / "rates_8b.toml")
    assert isinstance(rates, RatesSettings)
    assert rates.decode_token_s(96) > rates.decode_token_s(1)
