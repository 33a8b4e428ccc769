"""Runs with environments: log-probs equal to the learner's, rows, mixtures, evaluation, resume."""

import json
from contextlib import closing

import forked
import pytest
import torch
from contracts.requests import drain
from played import STOPS, Echo, playing, request, turns_engine
from small_runs import StopsAfter, small, without_time
from tiny_models import SIZES
from transformers import AutoModelForCausalLM, LlamaConfig

from scalerl.errors import GraderError, RecipeError
from scalerl.runfolder import store
from scalerl.training.learner.batch import prepare
from scalerl.training.learner.policy import LocalPolicy
from scalerl.training.rl.algorithm import imitate
from scalerl.training.rollout.torch.engine import TorchEngine
from scalerl.training.run.evaluate import evaluate_model
from scalerl.training.run.inputs import load_inputs
from scalerl.training.run.run import TrainingRun
from scalerl.training.run.trial import try_parts
from scalerl.training.types import Batch, Completion, Group

NUDGED = ("task.environment=own_environments:Nudge", "task.environment.in_process=true")


def log_prob_differences(completions: list[Completion], model) -> torch.Tensor:
    """Return the learner's log-prob less the engine's, over all trained tokens of completions."""
    num = len(completions)
    group = Group(
        key="g",
        problem=completions[0].request.problem,
        completions=tuple(completions),
        correct=(True,) * num,
        rewards=(1.0,) * num,
    )
    policy = LocalPolicy(model)
    prepared = prepare(
        Batch(version=0, groups=(group,)),
        algorithm=imitate,
        micro_batch_tokens=4096,
        share_from=policy.share_from,
    )
    with torch.no_grad():
        return torch.cat([policy.run(micro.inputs)[0] - micro.generator_log_probs for micro in prepared.micro_batches])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_probs_of_conversations_equal_the_learners(dtype):
    # Weights as transformers draws them: with larger ones, FP32 itself is off by more than 1e-5.
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(LlamaConfig(**{**SIZES, "vocab_size": 64}), dtype=torch.float32).eval()
    inner = TorchEngine(model, slots=8, max_length=64, stop_tokens=STOPS, chunk=4, dtype=dtype)
    with closing(turns_engine({"own": playing(Echo)}, inner=inner, slots=8, context=64)) as engine:
        engine.submit([request(number, budget=20) for number in range(96)])
        completions = drain(engine)
    assert max(len(completion.turns) for completion in completions) >= 3
    differences = log_prob_differences(completions, model)
    assert len(differences) == sum(completion.num_trained_tokens for completion in completions) > 1000
    if dtype == torch.float32:
        assert differences.abs().max() < 1e-5
    # The KL divergence of the engine from the learner, by an estimate that is never negative.
    assert (differences.exp() - 1 - differences).mean() < 1e-4


def test_resumed_run_over_conversations_repeats_itself(tmp_path):
    recipe = small(*NUDGED, "budget.steps=4", "filter.drop_truncated=false", "checkpoint.every=2", "pipeline.max_lag=0")
    TrainingRun(recipe, tmp_path / "whole").train()
    TrainingRun(recipe, tmp_path / "parts", observer=StopsAfter(2)).train()
    TrainingRun(recipe, tmp_path / "parts", resume=True).train()
    whole, parts = (without_time(store.read_metrics(tmp_path / name)) for name in ("whole", "parts"))
    for row, again in zip(whole, parts, strict=True):
        compared = row.keys() - {"attempt", "rollout/tool_s"}
        assert {key: row[key] for key in compared} == {key: again[key] for key in compared}
        assert 1 < row["rollout/turns_mean"] <= 2
        assert 0 < row["rollout/observed_frac"] < 0.5
        assert 0 < row["rollout/tool_calls_mean"] <= 1
        assert row["rollout/tool_errors_frac"] == 0
    timed = store.read_metrics(tmp_path / "whole")[-1]
    assert timed["rollout/tool_s"] > 0
    assert timed["time/tools_s"] > 0
    for row in store.read_evals(tmp_path / "whole"):
        assert 1 < row["turns_mean"] <= 2
    samples = [json.loads(line) for line in (tmp_path / "whole" / store.SAMPLES).read_text().splitlines()]
    said = [[part["by"] for part in row["conversation"]] for row in samples]
    assert ["model", "environment", "model"] in said


def test_generators_in_processes_of_their_own_hold_conversations(tmp_path, monkeypatch):
    forked.children(monkeypatch)
    recipe = small("task.environment=own_environments:Nudge", "rollout.generators=1", "budget.steps=3")
    TrainingRun(recipe, tmp_path / "run").train()
    for row in store.read_metrics(tmp_path / "run"):
        assert 1 < row["rollout/turns_mean"] <= 2
        assert row["rollout/lag_max"] <= 2


def test_a_trial_holds_a_conversation_and_shows_it(tmp_path):
    with closing(TrainingRun(small("task.environment=own_environments:Nudge"), tmp_path / "run")) as run:
        text = "\n".join(try_parts(run.parts, run.recipe))
    assert "own_environments:Nudge" in text
    assert "problem | " in text
    assert "model | " in text


def test_tasks_with_and_without_an_environment_mix(tmp_path):
    recipe = small(
        'task=""',
        "tasks.plain=arithmetic",
        "tasks.plain.num_problems=12",
        "tasks.played=arithmetic",
        "tasks.played.num_problems=12",
        "tasks.played.environment=own_environments:Nudge",
        "tasks.played.environment.in_process=true",
        "evaluation.sets.most=arithmetic",
        "evaluation.sets.most.num_prompts=4",
        "evaluation.sets.most.environment=own_environments:Nudge",
        "evaluation.sets.most.environment.most=3",
        "evaluation.sets.most.environment.in_process=true",
        "budget.steps=2",
    )
    TrainingRun(recipe, tmp_path / "run").train()
    evals = store.read_evals(tmp_path / "run")
    assert {row["set"]: "turns_mean" in row for row in evals} == {"plain": False, "played": True, "most": True}
    assert any("rollout/turns_mean" in row for row in store.read_metrics(tmp_path / "run"))


def test_evaluation_of_a_model_in_an_environment():
    (row,) = evaluate_model(small(*NUDGED))
    assert 1 < row["turns_mean"] <= 2
    assert [len(turns) for turns in row["correct_turns"]] == row["num_correct"]
    by_turns = row.get("pass_at_turns", {})
    assert all(0 <= by_k["1"] <= by_k["2"] <= 1 for by_k in by_turns.values())
    assert row["num_samples"] == 12


def test_environment_that_always_fails_ends_the_run_with_its_error(tmp_path):
    run = TrainingRun(small("task.environment=own_environments:Broken", "budget.steps=1"), tmp_path / "run")
    with pytest.raises(GraderError, match="broken on purpose"):
        try_parts(run.parts, run.recipe)
    with pytest.raises(Exception, match="broken on purpose"):
        run.train()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("task.environment=calculater",), "calculator"),
        (("task.environment=own_environments:Nudge", "task.environment.leat=3"), "leat"),
        (("task.environment=own_environments:Nothing",), "Nothing"),
        (("task.environment=own_environments:Step",), "own_environments:Step"),
    ],
)
def test_environment_that_cannot_be_used_is_refused_before_the_run(settings, message):
    with pytest.raises(RecipeError, match=message):
        load_inputs(small(*settings))
