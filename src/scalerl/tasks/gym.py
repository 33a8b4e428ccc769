"""Any task of reasoning-gym by its name there, asked and scored by reasoning-gym itself.

A score needs the whole entry, so a problem carries that as its reference.
"""

import dataclasses
import difflib
import functools
import json
from collections.abc import Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

from scalerl.errors import TaskError
from scalerl.graders.answer import answer_part
from scalerl.tasks.procedural import check_least, distinct
from scalerl.tasks.task import Task
from scalerl.types import THINKING_END, THINKING_START, Problem, derive_seed

if TYPE_CHECKING:
    from reasoning_gym.dataset import ProceduralDataset

GRADER = f"{__name__}:grade"

# Entries are dear, some of them a second each, so few are spent on finding out that there are no more.
_MOST_MISSES = 200

# A data set there has a size, which says how far its index may go and nothing about its cost.
_SIZE = 10**9


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
    """A reasoning-gym data set; a score of `threshold` is right, and every further setting is one of its own.

    What is evaluated on is drawn first, and nothing equal to it in content is trained on.
    """
    check_least("gym", num_problems=(num_problems, 1))
    if not 0 < threshold <= 1:
        raise TaskError(f"gym: threshold is {threshold:g} but scores reach from 0 to 1: set it above 0 and up to 1")
    _check_settings(dataset, difficulty)

    def drawn(purpose: str, purpose_seed: int, num: int, seen: tuple[Problem, ...]) -> tuple[Problem, ...]:
        source = _source(dataset, difficulty, seed=derive_seed(f"gym {purpose}", dataset, purpose_seed) % 2**31)
        index, taken = count(), {problem.content_hash for problem in seen}
        found = distinct(
            lambda: _problem(dataset, difficulty, threshold, source, purpose, next(index)),
            num,
            wanted=lambda problem: problem.content_hash not in taken,
            most_misses=_MOST_MISSES,
        )
        if len(found) < num:
            raise TaskError(
                f'gym: {num} different problems for {purpose} were asked for, but "{dataset}" with these settings '
                f"gives hardly more than {len(found)}: make it harder, or ask for fewer"
            )
        return found

    evaluation = drawn("evaluation", evaluation_seed, num_evaluation, ())
    training = drawn("training", seed, num_problems, evaluation)
    return Task(name="gym", training=training, evaluation=evaluation, grader=GRADER)


def grade(
    text: str, answer: str, /, *, thinking_start: str = THINKING_START, thinking_end: str = THINKING_END
) -> bool | None:
    """The data set's own score of the answer reaches the threshold; <answer> tags are taken off where it has them."""
    try:
        reference = _unpacked(json.loads(answer))
        threshold, entry = reference["threshold"], reference["entry"]
        source = _scorer(reference["dataset"], json.dumps(reference["difficulty"]))
    except (ValueError, KeyError, TypeError):
        return None
    given = answer_part(text, thinking_start=thinking_start, thinking_end=thinking_end)
    if given is None:
        return False
    _, tag, tagged = given.rpartition("<answer>")
    try:
        score = source.score_answer(tagged.partition("</answer>")[0].strip() if tag else given, entry)
    # Scorers read what a model wrote, and some raise on what they cannot read: that is a wrong answer.
    except Exception:
        return False
    return bool(score >= threshold)


def _check_settings(dataset: str, difficulty: Mapping[str, Any]) -> None:
    names, known = _known_settings(dataset)
    if known is None:
        raise TaskError(f'gym: reasoning-gym has no data set "{dataset}"{_meant(dataset, names)}')
    for name in difficulty:
        if name not in known:
            raise TaskError(
                f'gym: {name} is no setting of "{dataset}", which has {", ".join(known)}{_meant(name, known)}'
            )


def _known_settings(dataset: str) -> tuple[list[str], list[str] | None]:
    """Names of all data sets, and of the settings of this one; None where there is no such data set."""
    try:
        from reasoning_gym.factory import DATASETS
    except ModuleNotFoundError:
        raise TaskError('gym: reasoning-gym is not installed: pip install "scalerl[gym]"') from None
    if dataset not in DATASETS:
        return list(DATASETS), None
    fields = dataclasses.fields(DATASETS[dataset][1])
    return list(DATASETS), [field.name for field in fields if field.name not in ("seed", "size")]


def _source(dataset: str, difficulty: Mapping[str, Any], *, seed: int) -> "ProceduralDataset":
    from reasoning_gym.factory import create_dataset

    try:
        return create_dataset(dataset, seed=seed, size=_SIZE, **difficulty)
    # Its checks are assertions and whatever else a wrong type runs into.
    except Exception as error:
        raise TaskError(f'gym: "{dataset}" refuses these settings: {error or type(error).__name__}') from error


@functools.lru_cache(maxsize=8)
def _scorer(dataset: str, difficulty: str) -> "ProceduralDataset":
    return _source(dataset, json.loads(difficulty), seed=0)


def _problem(
    dataset: str, difficulty: Mapping[str, Any], threshold: float, source: "ProceduralDataset", purpose: str, index: int
) -> Problem:
    try:
        entry = source[index]
    except Exception as error:
        raise TaskError(f'gym: "{dataset}" with these settings fails at entry {index}: {error}') from error
    reference = {"dataset": dataset, "difficulty": dict(difficulty), "threshold": threshold, "entry": entry}
    try:
        answer = json.dumps(_packed(reference))
    except TypeError as error:
        raise TaskError(f'gym: an entry of "{dataset}" cannot be written down: {error}') from error
    return Problem(id=f"{dataset}-{purpose}-{index}", prompt=entry["question"], answer=answer, task="gym")


def _packed(value: Any) -> Any:
    """A value as JSON takes it whole: tuples stay apart from lists, and the keys of a mapping keep their type."""
    if isinstance(value, tuple):
        return {"tuple": [_packed(item) for item in value]}
    if isinstance(value, Mapping):
        return {"mapping": [[_packed(key), _packed(item)] for key, item in value.items()]}
    return [_packed(item) for item in value] if isinstance(value, list) else value


def _unpacked(value: Any) -> Any:
    """The value that _packed was given."""
    if isinstance(value, list):
        return [_unpacked(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, items),) = value.items()
    if kind == "tuple":
        return tuple(_unpacked(item) for item in items)
    return {_unpacked(key): _unpacked(item) for key, item in items}


def _meant(name: str, choices: list[str]) -> str:
    close = difflib.get_close_matches(name.lower(), choices, n=1)
    return f'; did you mean "{close[0]}"?' if close else ""
