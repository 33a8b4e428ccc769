"""The learning rate of each step."""

import math

import pytest
from batches import VERSION, random_batch
from learners import make_learner

from scalerl.errors import RecipeError
from scalerl.recipe.load import load_recipe
from scalerl.recipe.parts import OptimizerSettings
from scalerl.training.learner.schedules import SCHEDULES, rate


def rates(num: int, **settings) -> list[float]:
    used = OptimizerSettings(lr=1.0, warmup_steps=4, **settings)
    return [rate(used, step=step, updates=step) for step in range(num)]


def test_names_are_those_of_the_setting():
    assert list(SCHEDULES) == list(OptimizerSettings.model_fields["schedule"].annotation.__args__)  # pyright: ignore


@pytest.mark.parametrize(
    "name, middle", [("constant", 1.0), ("linear", 0.5), ("cosine", 0.5 * (1 + math.cos(math.pi * 0.5)))]
)
def test_schedules_by_hand(name: str, middle: float):
    found = rates(25, schedule=name, decay_steps=20)
    assert found[:4] == [0.25, 0.5, 0.75, 1.0]
    assert found[12] == pytest.approx(middle)
    end = 1.0 if name == "constant" else 0.0
    assert found[20:] == pytest.approx([end] * 5, abs=1e-12)
    assert found[4:] == sorted(found[4:], reverse=True)


def test_rate_falls_to_its_final_fraction():
    falling = rates(31, schedule="cosine", decay_steps=20, final_lr_frac=0.1)
    # From 1 after 4 steps of warm-up to 0.1 at step 20; in the middle halfway.
    assert [falling[step] for step in (4, 12, 20, 30)] == pytest.approx([1.0, 0.55, 0.1, 0.1])


def test_run_decays_over_its_budget():
    learner = make_learner("optimizer.schedule=linear", "optimizer.lr=1e-3", "budget.steps=8")
    row = learner.step(random_batch(0, clean=True))
    assert row["optim/lr"] == pytest.approx(1e-3 * (1 - VERSION / 8))


def test_schedule_without_an_end_is_refused():
    with pytest.raises(RecipeError, match=r"set optimizer\.decay_steps, or budget\.steps"):
        load_recipe("scalerl", ["optimizer.schedule=cosine", "budget.gpu_hours=1"])
