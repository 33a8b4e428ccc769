"""Remove demonstrations as the paper did before its SFT (arXiv 2510.13786, A.3).

    drawn demonstrations -> drop those that share words with an evaluation problem -> drop those of trivial prompts
                         -> encode -> drop long ones (demonstrations.py)

Each step returns the demonstrations that it keeps and a `Removed`. The paper defines neither its n-grams nor a trivial
prompt. Here n-grams have 13 words, as for GPT-3, and a prompt is trivial if the base model answers it correctly every
time.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Literal

from scalerl.config import Recipe, replaced
from scalerl.run.evaluate import evaluate_all
from scalerl.run.inputs import load_inputs
from scalerl.run.parts import build_engine
from scalerl.tasks.task import Demonstration, Task
from scalerl.types import Problem

_WORD = re.compile(r"\w+")

Ngram = tuple[str, ...]


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
            seen: dict[Ngram, int] = {}
            for text in {_plain(problem) for problem in of_set}:
                for ngram in self._ngrams(text):
                    seen[ngram] = seen.get(ngram, 0) + 1
            self._sets |= {ngram: name for ngram, num in seen.items() if num == 1}

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
    drawn: Mapping[str, Sequence[Demonstration]], problems: Mapping[str, Sequence[Problem]], length: int
) -> tuple[dict[str, list[Demonstration]], Removed]:
    """Remove demonstrations whose prompt shares `length` words in a row with an evaluation problem."""
    ngrams, by_set, example = EvaluationNgrams(problems, length), dict[str, int](), ""
    kept: dict[str, list[Demonstration]] = {name: [] for name in drawn}
    for name, items in drawn.items():
        for item in items:
            if (of_set := ngrams.set_of(item.problem)) is None:
                kept[name].append(item)
            else:
                by_set[of_set] = by_set.get(of_set, 0) + 1
                example = example or item.problem.prompt
    total = sum(map(len, drawn.values()))
    num = sum(by_set.values())
    return kept, Removed(kind="contaminated", num=num, total=total, limit=length, by_set=by_set, example=example)


def without_trivial(
    drawn: Mapping[str, Sequence[Demonstration]], solved: Collection[Problem], num_samples: int
) -> tuple[dict[str, list[Demonstration]], Removed]:
    """Remove demonstrations of problems that the model always solves."""
    kept = {name: [item for item in items if item.problem not in solved] for name, items in drawn.items()}
    removed = [item for items in drawn.values() for item in items if item.problem in solved]
    total = sum(map(len, drawn.values()))
    example = removed[0].problem.prompt if removed else ""
    return kept, Removed(kind="trivial", num=len(removed), total=total, limit=num_samples, example=example)


def solved_problems(
    recipe: Recipe, tasks: Mapping[str, Task], drawn: Mapping[str, Sequence[Demonstration]], num_samples: int
) -> frozenset[Problem]:
    """Return the problems that the recipe's model answers correctly in each of `num_samples` samples."""
    temperature = recipe.rollout.temperature
    settings = {"samples_per_prompt": num_samples, "temperature": temperature, "top_p": 1.0, "sets": {}}
    recipe = replaced(recipe, {"evaluation": replaced(recipe.evaluation, settings)})
    problems = {name: [*dict.fromkeys(item.problem for item in items)] for name, items in drawn.items()}
    # Demonstrations may come without ids of problems.
    numbered = {
        name: tuple(replace(problem, id=str(number)) for number, problem in enumerate(of_task))
        for name, of_task in problems.items()
    }
    inputs = load_inputs(recipe, tasks={name: replace(tasks[name], evaluation=numbered[name]) for name in numbered})
    with closing(inputs.graders), closing(build_engine(recipe, inputs)) as engine:
        results = evaluate_all(engine, inputs, step=0)
    return frozenset(
        problems[each.name][int(problem.id)]
        for each in inputs.eval_sets
        for problem, num in zip(each.problems, results[each.name].num_correct, strict=True)
        if num == num_samples
    )
