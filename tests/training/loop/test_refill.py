"""DAPO's refill: which groups are replaced, against the filter itself, and how the loop goes on."""

import dataclasses
import functools
import itertools
import json
from collections import Counter
from typing import Any

import pytest
import torch
from batches import random_batch
from simulated import AtOnce, CountingLearner, SimulatedEngine, grade, make_requests

from scalerl.recipe.parts import FilterSettings
from scalerl.training.learner.batch import prepare
from scalerl.training.loop.pipeline import Pipeline
from scalerl.training.loop.refill import Refill, teaches_nothing
from scalerl.training.rl.algorithm import reinforce
from scalerl.training.rl.filters import effective_batch
from scalerl.training.rl.weights import prompt
from scalerl.training.tasks.curriculum import Curriculum, uniform
from scalerl.training.types import Batch, Completion, Group, derive_seed


@pytest.mark.parametrize("drop_truncated", [True, False])
def test_replaced_groups_are_those_that_the_filter_drops(drop_truncated):
    effective = functools.partial(effective_batch, drop_truncated=drop_truncated, zero_variance=True)
    algorithm = functools.partial(reinforce, effective=effective, average=prompt)
    outcomes = set()
    for seed in range(12):
        for group in random_batch(seed, num_groups=8).groups:
            made = prepare(Batch(version=3, groups=[group]), algorithm=algorithm, micro_batch_tokens=64)
            dropped = made.effective.num_kept == 0
            outcomes.add(dropped)
            assert teaches_nothing(group, FilterSettings(drop_truncated=drop_truncated)) == dropped
    assert outcomes == {True, False}


# Every completion of the simulated engine ends at its limit.
ALL_LENGTHS = FilterSettings(drop_truncated=False)


def contrasting(key: str) -> bool:
    """One group in three has a right and a wrong answer."""
    return derive_seed("contrast", key) % 3 == 0


def some_contrast(completions: list[Completion]) -> Group:
    group = grade(completions)
    if not contrasting(group.key):
        return group
    return dataclasses.replace(group, correct=(True, False), rewards=(1.0, -1.0), values=(1.0, 0.0))


def run(*, refill: Refill | None, steps: int = 12, num_problems: int = 4000, **regime: Any):
    engine = SimulatedEngine(slots=24, seed=0)
    curriculum = Curriculum([f"p{n}" for n in range(num_problems)], seed=0, left_out=uniform)
    pipeline = Pipeline(
        engine=engine,
        curriculum=curriculum,
        learner=CountingLearner(),
        make_requests=make_requests,
        grading=AtOnce(some_contrast),  # pyright: ignore[reportArgumentType]
        refill=refill,
        groups_per_batch=4,
        max_lag=2,
        **regime,
    )
    return engine, curriculum, pipeline, list(itertools.islice(pipeline.steps(), steps))


@pytest.mark.parametrize("regime", [{}, {"waits_for": "groups"}, {"push_every": 3, "drain": True}])
def test_batches_are_full_of_groups_that_teach(regime):
    plain_engine, _, _, plain = run(refill=None, **regime)
    assert any(not contrasting(group.key) for done in plain for group in done.batch.groups)
    assert all(done.refill == {} for done in plain)
    engine, curriculum, pipeline, steps = run(refill=Refill(most=1000, filters=ALL_LENGTHS), **regime)
    for done in steps:
        assert len(done.batch.groups) == 4
        assert all(contrasting(group.key) for group in done.batch.groups)
    replaced = sum(done.refill["batch/replaced_groups"] for done in steps)
    assert replaced > 12
    # Two thirds of the groups teach nothing, and all that were sampled are counted.
    assert engine.work.decoded > 2 * plain_engine.work.decoded
    # A group that was replaced waits for nobody.
    assert {issued.key for issued in curriculum.untrained} == {group.key for group in pipeline.state().groups}


def test_a_limit_lets_the_others_in():
    _, _, _, steps = run(refill=Refill(most=4, filters=ALL_LENGTHS))
    assert max(done.refill["batch/replaced_groups"] for done in steps) == 4
    assert any(not contrasting(group.key) for done in steps for group in done.batch.groups)


def test_limit_of_a_drained_round_reaches_its_last_step():
    """Two thirds of the groups teach nothing: 8 replaced ones per step are needed on average, and 16 are allowed."""
    refill = Refill(most=16, round_steps=3, filters=ALL_LENGTHS)
    _, _, _, steps = run(refill=refill, push_every=3, drain=True, steps=30)
    for done in steps:
        assert len(done.batch.groups) == 4
        assert all(contrasting(group.key) for group in done.batch.groups), done.version
    rounds = [steps[start : start + 3] for start in range(0, 30, 3)]
    replaced = [sum(done.refill["batch/replaced_groups"] for done in each) for each in rounds]
    assert 16 < max(replaced) <= 48


def test_limit_of_a_drained_round_holds():
    refill = Refill(most=4, round_steps=3, filters=ALL_LENGTHS)
    _, _, _, steps = run(refill=refill, push_every=3, drain=True, steps=30)
    rounds = [steps[start : start + 3] for start in range(0, 30, 3)]
    replaced = [sum(done.refill["batch/replaced_groups"] for done in each) for each in rounds]
    assert max(replaced) == 12


def test_correct_share_is_of_all_groups():
    _, _, _, steps = run(refill=Refill(most=1000, filters=ALL_LENGTHS), steps=40)
    shares = [done.refill["rollout/correct_frac"] for done in steps]
    # A third of the groups has one of two right, and a third of the others has both.
    assert sum(shares) / len(shares) == pytest.approx(1 / 6 + 2 / 9, abs=0.06)
    assert all(group.num_correct == 1 for done in steps for group in done.batch.groups)


def test_data_that_end_are_trained_to_the_last_group():
    solved_once = lambda record: True  # noqa: E731
    curriculum = Curriculum([f"p{n}" for n in range(50)], seed=0, left_out=solved_once)
    pipeline = Pipeline(
        engine=SimulatedEngine(slots=8),
        curriculum=curriculum,
        learner=CountingLearner(),
        make_requests=make_requests,
        grading=AtOnce(some_contrast),  # pyright: ignore[reportArgumentType]
        refill=Refill(most=1000, filters=ALL_LENGTHS),
        groups_per_batch=4,
        max_lag=1,
    )
    trained = [group.key for done in pipeline.steps() for group in done.batch.groups]
    assert sorted(trained) == sorted(f"0/p{n}" for n in range(50) if contrasting(f"0/p{n}"))
    assert curriculum.untrained == curriculum.in_flight == ()


def test_counts_survive_a_restart():
    refill = Refill(most=3)
    equal = [grade_of for grade_of in random_groups() if teaches_nothing(grade_of, FilterSettings())]
    assert [refill.replaces(group) for group in equal[:2]] == [True, True]
    again = Refill(most=3, counts=Counter(json.loads(json.dumps(refill.counts))))
    assert [again.replaces(group) for group in equal[2:4]] == [True, False]
    assert again.take_metrics()["batch/replaced_groups"] == 3
    assert set(again.counts.values()) == {0}
    assert again.counts.keys() == refill.counts.keys(), "a checkpoint has all of them"
    assert again.replaces(equal[4])


def random_groups() -> list[Group]:
    torch.manual_seed(0)
    return [group for seed in range(20) for group in random_batch(seed).groups]
