"""The two rules of waiting (pipeline.waits_for) in a run whose lengths have a long tail: real engine and learner."""

import statistics
from typing import Any

import numpy as np
import pytest
import torch
from learners import recipe_of
from transformers import LlamaConfig, LlamaForCausalLM

from scalerl.loop.pipeline import Pipeline
from scalerl.rollout.torch.engine import TorchEngine
from scalerl.run.learners import build_learner
from scalerl.tasks.curriculum import Curriculum, uniform
from scalerl.types import Completion, Group, LengthPlan, Problem, Request, derive_seed

GROUPS, PER_GROUP, MAX_LAG, CONTEXT, STEPS = 4, 4, 4, 512, 60
PROBLEM = Problem(id="0", prompt="", answer="", task="t")


class Counting(TorchEngine):
    """Counts the chunks of tokens that it samples, which are the time of this run on any machine."""

    num_polls = 0

    def poll(self) -> list[Completion]:
        self.num_polls += 1
        return super().poll()


class FirstHalf:
    """Grades the first half of a group as right."""

    def __init__(self) -> None:
        self._groups: list[Group] = []

    def submit(self, completions: Any) -> None:
        correct = tuple(2 * index < PER_GROUP for index in range(PER_GROUP))
        rewards = tuple(1.0 if verdict else -1.0 for verdict in correct)
        key = completions[0].request.group
        self._groups.append(
            Group(key=key, problem=PROBLEM, completions=tuple(completions), correct=correct, rewards=rewards)
        )

    def poll(self, *, wait: bool = False) -> list[Group]:
        done, self._groups = self._groups, []
        return done


def requests_of(issued: Any) -> list[Request]:
    """Lengths of 15 tokens in the mean, log-normal with a spread of 1.2: one completion in a hundred has over 100."""
    rng = np.random.default_rng(derive_seed(issued.key))
    lengths = np.exp(np.log(15) - 1.2**2 / 2 + 1.2 * rng.standard_normal(PER_GROUP)).clip(1, CONTEXT - 8)
    return [
        Request(
            group=issued.key,
            index=index,
            problem=PROBLEM,
            prompt_tokens=(1, 2, 3, 4),
            seed=derive_seed(issued.key, index),
            length=LengthPlan(answer_budget=int(np.ceil(length))),
        )
        for index, length in enumerate(lengths)
    ]


def train(waits_for: Any) -> dict[str, float]:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=29,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=CONTEXT,
    )
    model: Any = LlamaForCausalLM(config).eval()
    slots = (MAX_LAG + 1) * GROUPS * PER_GROUP
    engine = Counting(model, slots=slots, max_length=CONTEXT, stop_tokens=())
    pipeline = Pipeline(
        engine=engine,
        curriculum=Curriculum([str(number) for number in range(1000)], seed=0, retires=uniform),
        learner=build_learner(model, recipe_of("filter.drop_truncated=false")),
        make_requests=requests_of,
        grading=FirstHalf(),
        groups_per_batch=GROUPS,
        max_lag=MAX_LAG,
        waits_for=waits_for,
    )
    steps = pipeline.steps()
    done = [next(steps) for _ in range(STEPS)]
    lags = [lag for step in done for lag in step.batch.lags]
    decoded, chunks = engine.work.decoded, engine.num_polls
    return {
        "chunks": chunks / STEPS,
        "tokens": decoded / chunks,
        "lag_mean": statistics.mean(lags),
        "lag_max": max(lags),
        "trained": sum(len(step.batch.groups) for step in done),
    }


def test_long_tail_makes_one_rule_wait_and_the_other_lag():
    groups, generators = train("groups"), train("generators")
    print(groups, generators)
    assert groups["trained"] == generators["trained"] == GROUPS * STEPS
    assert groups["lag_max"] == MAX_LAG < generators["lag_max"]
    assert generators["chunks"] < 0.8 * groups["chunks"], "steps do not wait for the longest completions"
    assert generators["tokens"] > 1.2 * groups["tokens"], "so more slots are in use"
    assert generators["lag_mean"] == pytest.approx(MAX_LAG, abs=1.0)
