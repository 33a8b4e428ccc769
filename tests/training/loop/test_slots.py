"""The expected lag against the loop itself, over an engine with programmed lengths."""

import functools
import itertools
import re
import tomllib
from importlib.resources import files

import numpy as np
import pytest
from fake_engine import FakeEngine
from simulated import AtOnce, CountingLearner, grade, make_requests

from scalerl.recipe.load import list_recipes, load_recipe
from scalerl.recipe.parts import PipelineSettings
from scalerl.training.loop.pipeline import Pipeline
from scalerl.training.loop.slots import expected_lag, full_slots, lag_words, seen_words
from scalerl.training.tasks.curriculum import Curriculum, uniform
from scalerl.training.types import Batch, Request

GROUPS, COMPLETIONS = 4, 4
BATCH = GROUPS * COMPLETIONS


def settings(max_lag: int, **regime) -> PipelineSettings:
    return PipelineSettings(groups_per_batch=GROUPS, completions_per_group=COMPLETIONS, max_lag=max_lag, **regime)


class LagLearner(CountingLearner):
    def step(self, batch: Batch):
        super().step(batch)
        lags = [batch.version - done.versions for group in batch.groups for done in group.completions]
        return {"lag": float(np.concatenate(lags).mean()), "largest": float(np.concatenate(lags).max())}


def length(request: Request) -> int:
    """Polls of a completion: 2 to 33, so that the longest of four takes about 1.5 times the mean."""
    return 2 + request.seed % 32


# Mean of the longest of four lengths over the mean length.
SPREAD = float(np.random.default_rng(0).integers(2, 34, (4000, COMPLETIONS)).max(axis=1).mean() / 17.5)


def heavy_length(request: Request) -> int:
    """One completion in 24 takes thirty times as long as the others."""
    return 300 if request.seed % 24 == 0 else 10


def measured(slots: int, max_lag: int, *, steps: int = 24, heavy: bool = False, **regime) -> tuple[float, float]:
    """Mean and largest lag of the loop, without its first steps, in which lags build up."""
    pipeline = Pipeline(
        engine=FakeEngine(polls=heavy_length if heavy else length, slots=slots),
        curriculum=Curriculum([f"p{place}" for place in range(600)], seed=0, left_out=uniform),
        learner=LagLearner(),
        make_requests=functools.partial(make_requests, num=COMPLETIONS),
        grading=AtOnce(grade),
        groups_per_batch=GROUPS,
        max_lag=max_lag,
        **regime,
    )
    rows = [done.metrics for done in itertools.islice(pipeline.steps(), steps)][max_lag + 2 :]
    return float(np.mean([row["lag"] for row in rows])), max(row["largest"] for row in rows)


@pytest.mark.parametrize("waits_for", ["batch", "groups"])
@pytest.mark.parametrize("max_lag, batches", [(4, 0.5), (4, 2), (4, 5), (8, 1), (8, 9)])
def test_expected_lag_is_that_of_the_loop(max_lag, batches, waits_for):
    slots = int(batches * BATCH)
    expected = expected_lag(slots, settings(max_lag, waits_for=waits_for), spread=SPREAD)
    mean, largest = measured(slots, max_lag, waits_for=waits_for)
    assert mean == pytest.approx(expected.mean, rel=0.15, abs=0.25)
    assert expected.binds == (largest == max_lag if waits_for == "groups" else batches == max_lag + 1)


@pytest.mark.parametrize("waits_for, bounded", [("batch", "the mean"), ("groups", "every group")])
def test_expected_and_seen_lag_in_words(waits_for, bounded):
    pipeline = settings(4, waits_for=waits_for)
    lag = expected_lag(full_slots(pipeline), pipeline)
    assert lag.largest == (8 if waits_for == "batch" else 4)
    assert lag_words(lag).endswith(f"max_lag = 4 bounds {bounded}")
    beside = lag_words(lag, beside=True)
    assert f"expected lag {lag.mean:.2g} steps on average" in beside
    assert f"max_lag = 4 bounds {bounded}," in beside
    rows = [{"rollout/lag_mean": 2.0, "rollout/lag_max": 9.0}, {}, {"rollout/lag_mean": 3.0, "rollout/lag_max": 5.0}]
    numbers = [float(number) for number in re.findall(r"[\d.]+", seen_words(lag, rows))]
    assert numbers == [2.5, 9, pytest.approx(lag.mean, abs=0.1), lag.largest]
    assert seen_words(lag, [{}]) == ""


def test_heavy_tails_leave_single_groups_far_behind_the_mean():
    """What max_lag bounds with waits_for = "batch": the mean, and not the largest."""
    mean, largest = measured(full_slots(settings(4)), 4, heavy=True, steps=60)
    assert mean <= 4
    assert largest > 2 * 4
    mean, largest = measured(full_slots(settings(4)), 4, heavy=True, steps=60, waits_for="groups")
    assert largest <= 4


def test_drained_rounds_have_half_of_max_lag():
    mean, _ = measured(2 * BATCH, 3, push_every=4, drain=True, steps=21)
    assert mean == pytest.approx(expected_lag(2 * BATCH, settings(3, push_every=4, drain=True)).mean, abs=0.1)


def test_full_slots_are_the_most_untrained_completions():
    slots = full_slots(settings(4))
    assert slots == 5 * BATCH
    assert measured(slots, 4) == measured(10 * slots, 4)


def test_max_lag_that_cannot_bind_is_reported():
    paper = PipelineSettings(groups_per_batch=48, completions_per_group=16, max_lag=8)
    strict = paper.model_copy(update={"waits_for": "groups"})
    for pipeline, needed in ((paper, 9 * 768), (strict, 1536)):
        few, enough = expected_lag(64, pipeline), expected_lag(needed, pipeline)
        assert (few.binds, few.slots_to_bind, enough.binds) == (False, needed, True)
        assert few.mean < 0.3
        assert f"max_lag = 8 cannot bind with fewer than about {needed:,} slots" in lag_words(few)
        assert "cannot bind" not in lag_words(enough)


def stated_lag(name: str) -> float:
    """The lag in the text of a recipe, or of the recipe it extends."""
    text = (files("scalerl") / "recipe" / "recipes" / f"{name}.toml").read_text()
    if stated := re.search(r"mean lag of about ([\d.]+)", text):
        return float(stated[1])
    return stated_lag(tomllib.loads(text)["extends"])


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_states_its_expected_lag(name):
    recipe = load_recipe(name)
    lag = expected_lag(recipe.rollout.slots or full_slots(recipe.pipeline), recipe.pipeline)
    assert stated_lag(name) == pytest.approx(lag.mean, abs=0.051)
