"""What `train` and `--check` say about a recipe before it starts."""

import pytest

from scalerl.recipe.load import load_recipe
from scalerl.recipe.recipe import remedies, rounds_generator
from scalerl.training.run.notices import mismatch_notices, schedule_notices


@pytest.mark.parametrize(
    "overrides, noticed",
    [
        ((), []),
        (("optimizer.warmup_steps=500",), ["optimizer.warmup_steps = 500 is not below budget.steps = 120"]),
        # docs/results/ablations.md: what stayed up, what fell at a large lag, and what collapsed at any lag.
        (("pipeline.max_lag=32",), []),
        (("optimizer.lr=6e-4",), []),
        (
            ("optimizer.lr=6e-4", "pipeline.max_lag=32"),
            ["optimizer.lr = 0.0006 x width 128 x (pipeline.max_lag = 32 + 1) = 2.5, above 0.85"],
        ),
        (("optimizer.lr=2e-3", "pipeline.max_lag=0"), ["optimizer.lr = 0.002 x width 128 = 0.26, above 0.1"]),
    ],
)
def test_risky_and_unfinished_schedules_are_reported(overrides: tuple[str, ...], noticed: list[str]):
    recipe = load_recipe("tiny-cpu", overrides)
    steps, max_lag = recipe.budget.steps, recipe.pipeline.max_lag
    notices = schedule_notices(recipe.optimizer, max_lag=max_lag, steps=steps, width=128)
    assert [line.partition(":")[0] for line in notices] == noticed


@pytest.mark.parametrize(
    "overrides, gpu, noticed",
    [
        ((), True, []),
        (("model.fp32_head=generator",), False, []),
        (("model.fp32_head=generator",), True, ['model.fp32_head = "generator"']),
        (("model.fp32_head=generator", "correction=band"), True, []),
        (("rollout.engine=vllm", "rollout.vllm.quantisation=fp8"), True, ['rollout.vllm.quantisation = "fp8"']),
    ],
)
def test_generators_that_round_differently_are_reported(overrides: tuple[str, ...], gpu: bool, noticed: list[str]):
    recipe = load_recipe("tiny-cpu", overrides)
    rounded, corrects = rounds_generator(recipe, gpu=gpu), recipe.correction.name != "none"
    notices = mismatch_notices(rounded, remedies(recipe)["backend"], corrects=corrects)
    assert [line.partition(":")[0] for line in notices] == noticed
