"""Any data set of reasoning-gym, by name. Its scorer (graders/gym.py) needs a whole entry: this is the answer."""

import json
from collections.abc import Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

from scalerl.errors import TaskError
from scalerl.recipe.suggest import did_you_mean
from scalerl.training.graders.gym import make_source
from scalerl.training.graders.sandbox.values import encode
from scalerl.training.tasks.procedural import check_ranges, distinct, enough, faults_of
from scalerl.training.tasks.task import Task
from scalerl.training.types import Problem, derive_seed

if TYPE_CHECKING:
    from reasoning_gym.dataset import ProceduralDataset

_MOST_MISSES = 200
"""A small number, because some entries take a second to generate."""


def gym(
    num_evaluation: int,
    evaluation_seed: int,
    /,
    *,
    dataset: str,
    num_problems: int = 1000,
    seed: int = 0,
    threshold: float = 1.0,
    **difficulty: Any,
) -> Task:
    """A data set of reasoning-gym. A score of at least `threshold` is correct; other settings are the data set's.

    Evaluation problems are drawn first, and no training problem equals one of them in content.
    """

    def drawn(purpose: str, purpose_seed: int, num: int, seen: tuple[Problem, ...]) -> tuple[Problem, ...]:
        source = make_source(dataset, difficulty, seed=derive_seed(f"gym {purpose}", dataset, purpose_seed) % 2**31)
        index = count()
        excluded = {problem.content_hash for problem in seen}
        problems = distinct(
            lambda: _problem(dataset, difficulty, threshold, source, purpose, next(index)),
            num,
            wanted=lambda problem: problem.content_hash not in excluded,
            most_misses=_MOST_MISSES,
        )
        return enough(problems, num, purpose=purpose, remedy=f'make "{dataset}" harder')

    with faults_of("gym"):
        check_ranges(num_problems=(num_problems, 1))
        if not 0 < threshold <= 1:
            raise TaskError(f"threshold is {threshold:g} but must be above 0 and at most 1, like scores")
        _check_data_set(dataset)
        evaluation = drawn("evaluation", evaluation_seed, num_evaluation, ())
        training = drawn("training", seed, num_problems, evaluation)
    return Task(name="gym", training=training, evaluation=evaluation, grader="gym")


def _check_data_set(dataset: str) -> None:
    try:
        from reasoning_gym.factory import DATASETS
    except ModuleNotFoundError:
        raise TaskError('reasoning-gym is not installed: pip install "scalerl[gym]"') from None
    if dataset not in DATASETS:
        raise TaskError(f'reasoning-gym has no data set "{dataset}"{did_you_mean(dataset, DATASETS)}')


def _problem(
    dataset: str, difficulty: Mapping[str, Any], threshold: float, source: "ProceduralDataset", purpose: str, index: int
) -> Problem:
    try:
        entry = source[index]
    except Exception as error:
        raise TaskError(f'"{dataset}" with these settings fails at entry {index}: {error}') from error
    reference = {"dataset": dataset, "difficulty": dict(difficulty), "threshold": threshold, "entry": entry}
    try:
        answer = json.dumps(encode(reference))
    except TypeError as error:
        raise TaskError(f'an entry of "{dataset}" cannot be written down: {error}') from error
    return Problem(id=f"{dataset}-{purpose}-{index}", prompt=entry["question"], answer=answer, task="gym")
