"""Remove demonstrations as the paper did before its SFT (arXiv 2510.13786, A.3).

    drawn demonstrations -> drop those that share words with an evaluation problem -> drop those of trivial prompts
                         -> encode -> drop long ones (demonstrations.py)

Each step returns the demonstrations that it keeps and a `Removed`. The paper defines neither its n-grams nor a trivial
prompt. Here n-grams have 13 words, as for GPT-3, and a prompt is trivial if the base model answers it correctly every
time.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from scalerl.recipe.recipe import Recipe, replaced
from scalerl.training.run.evaluate import evaluate_all
from scalerl.training.run.inputs import load_inputs
from scalerl.training.run.parts import build_engine
from scalerl.training.tasks.task import Demonstration, Task
from scalerl.training.types import Problem

_WORD = re.compile(r"\w+")

Ngram = tuple[str, ...]
Drawn = Mapping[str, Sequence[Demonstration]]
"""Demonstrations by task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """What one step removed."""

    kind: Literal["contaminated", "trivial", "too_long"]
    num: int
    total: int
    """Number of demonstrations before the step."""
    limit: int
    """The setting of the step: number of words in a row, of samples, or of tokens."""
    by_set: Mapping[str, int] = field(default_factory=dict)
    """Number of demonstrations that share words with problems of each evaluation set."""
    example: str = ""
    """A prompt that was removed."""


class EvaluationNgrams:
    """The n-grams of words that occur in only one problem of an evaluation set.

    N-grams that several problems share belong to a template and are not evidence of contamination.
    """

    def __init__(self, problems: Mapping[str, Sequence[Problem]], length: int) -> None:
        self._length, self._sets = length, dict[Ngram, str]()
        for name, of_set in problems.items():
            texts = set(map(_plain, of_set))
            counts = Counter(ngram for text in texts for ngram in self._ngrams(text))
            self._sets |= {ngram: name for ngram, num in counts.items() if num == 1}

    def set_of(self, problem: Problem) -> str | None:
        """Return an evaluation set that shares an n-gram with the problem; None if there is none."""
        return next((self._sets[ngram] for ngram in self._ngrams(_plain(problem)) if ngram in self._sets), None)

    def _ngrams(self, text: str) -> Collection[Ngram]:
        """Return the n-grams of a text; a text of fewer words is a single n-gram, which includes its symbols."""
        words = _WORD.findall(text)
        num = len(words) - self._length + 1
        return {tuple(words[start : start + self._length]) for start in range(num)} if num > 0 else {(text,)}


def _plain(problem: Problem) -> str:
    """Return the text of a problem in lower case, with single spaces."""
    return " ".join(problem.prompt.casefold().split())


def decontaminate(
    drawn: Drawn, problems: Mapping[str, Sequence[Problem]], length: int
) -> tuple[dict[str, list[Demonstration]], Removed]:
    """Remove demonstrations whose prompt shares `length` words in a row with an evaluation problem."""
    return _without(drawn, EvaluationNgrams(problems, length).set_of, kind="contaminated", limit=length)


def without_trivial(
    drawn: Drawn, solved: Collection[Problem], num_samples: int
) -> tuple[dict[str, list[Demonstration]], Removed]:
    """Remove demonstrations of problems that the model always solves."""
    return _without(drawn, lambda problem: "" if problem in solved else None, kind="trivial", limit=num_samples)


def _without(
    drawn: Drawn, set_of: Callable[[Problem], str | None], **step: Any
) -> tuple[dict[str, list[Demonstration]], Removed]:
    """Remove demonstrations for whose problem `set_of` returns the name of a set, or "" for none."""
    problems = [item.problem for items in drawn.values() for item in items]
    sets = {problem: set_of(problem) for problem in problems}
    kept = {name: [item for item in items if sets[item.problem] is None] for name, items in drawn.items()}
    removed = [problem for problem in problems if sets[problem] is not None]
    by_set = Counter(of_set for problem in removed if (of_set := sets[problem]))
    example = removed[0].prompt if removed else ""
    return kept, Removed(num=len(removed), total=len(problems), by_set=dict(by_set), example=example, **step)


def solved_problems(recipe: Recipe, tasks: Mapping[str, Task], drawn: Drawn, num_samples: int) -> frozenset[Problem]:
    """Return the problems that the recipe's model answers correctly in each of `num_samples` samples."""
    settings = {"samples_per_prompt": num_samples, "temperature": recipe.rollout.temperature, "top_p": 1.0, "sets": {}}
    recipe = replaced(recipe, {f"evaluation.{key}": value for key, value in settings.items()})
    problems = {name: [*dict.fromkeys(item.problem for item in items)] for name, items in drawn.items()}
    # Demonstrations may come without ids of problems.
    numbered = {
        name: replace(tasks[name], evaluation=tuple(replace(each, id=str(num)) for num, each in enumerate(of_task)))
        for name, of_task in problems.items()
    }
    inputs = load_inputs(recipe, tasks=numbered)
    with closing(inputs.graders), closing(build_engine(recipe, inputs)) as engine:
        results = evaluate_all(engine, inputs, step=0)
    return frozenset(
        problems[each.name][int(problem.id)]
        for each in inputs.eval_sets
        for problem, num in zip(each.problems, results[each.name].num_correct, strict=True)
        if num == num_samples
    )
