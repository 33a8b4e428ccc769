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
from pathlib import Path
from typing import Any, Literal

from scalerl.recipe.parts import UnlimitedSettings
from scalerl.recipe.recipe import Recipe, replaced
from scalerl.runfolder.atomic_files import write_errors
from scalerl.runfolder.json_text import parse_json
from scalerl.runfolder.store import write_json
from scalerl.training.models.load import load_config
from scalerl.training.run.evaluate import evaluate_all
from scalerl.training.run.inputs import load_inputs
from scalerl.training.run.parts import build_engine
from scalerl.training.tasks.task import Demonstration, Task
from scalerl.training.types import Problem

_WORD = re.compile(r"\w+")
_TOKEN = re.compile(r"\w+|[^\w\s]")

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
    """Finds evaluation problems in prompts: by n-grams of words, and short problems, of fewer words, as a whole.

    N-grams that several problems of a set share belong to a template and are not evidence of contamination.
    """

    def __init__(self, problems: Mapping[str, Sequence[Problem]], length: int) -> None:
        self._length, self._sets = length, dict[Ngram, str]()
        self._short: dict[str, Any] = {}
        """The tokens of short problems as a tree: each maps to those that follow it, and _SET to the set's name."""
        for name, of_set in problems.items():
            counts = Counter[Ngram]()
            for text in {problem.prompt.casefold() for problem in of_set}:
                counts.update(self._ngrams(text) or ())
                if not self._ngrams(text):
                    self._add_short(text, name)
            self._sets |= {ngram: name for ngram, num in counts.items() if num == 1}

    def set_of(self, problem: Problem) -> str | None:
        """Return an evaluation set of which the prompt has an n-gram or a short problem; None if there is none."""
        text = problem.prompt.casefold()
        for ngram in self._ngrams(text):
            if ngram in self._sets:
                return self._sets[ngram]
        return self._short_in(_TOKEN.findall(text)) if self._short else None

    def _ngrams(self, text: str) -> set[Ngram]:
        """Return the n-grams of a text; none if it has fewer words."""
        words = _WORD.findall(text)
        num = len(words) - self._length + 1
        return {tuple(words[start : start + self._length]) for start in range(num)}

    def _add_short(self, text: str, name: str) -> None:
        node = self._short
        for token in _short_tokens(_TOKEN.findall(text)):
            node = node.setdefault(token, {})
        node[_SET] = name

    def _short_in(self, tokens: Sequence[str]) -> str | None:
        """Return the set of a short problem that these tokens contain as a whole."""
        tokens = _short_tokens(tokens)
        for start, first in enumerate(tokens):
            if start and _continues(tokens[start - 1], first):
                continue
            node = self._short
            for place in range(start, len(tokens)):
                node = node.get(tokens[place])
                if node is None:
                    break
                is_all = place + 1 - start == len(tokens)
                is_whole = place + 1 == len(tokens) or not _continues(tokens[place + 1], tokens[place])
                if _SET in node and is_whole and (is_all or place + 1 - start >= FEWEST_TOKENS):
                    return node[_SET]
        return None


_SET = ""
"""Key of the name of an evaluation set; no token is empty."""
FEWEST_TOKENS = 3
"""Words and symbols of the shortest problem that counts inside a longer prompt; a shorter one must be equal."""
_BETWEEN = frozenset(".,:;!?\"'()[]{}$`")
"""Symbols that may stand beside a problem without being a part of it."""


def _short_tokens(tokens: Sequence[str]) -> Sequence[str]:
    """Return tokens without a sentence's end."""
    end = len(tokens)
    while end and tokens[end - 1] in ".?!":
        end -= 1
    return tokens[:end]


def _continues(neighbour: str, edge: str) -> bool:
    """Return whether a token beside a problem is a part of the same formula, so that the prompt asks for more.

    "1 + 2 =" is no part of "3 + 1 + 2 =", but of "Compute: 1 + 2 = ".
    """
    return not edge.isalpha() and not neighbour.isalpha() and neighbour not in _BETWEEN


def decontaminate(
    drawn: Drawn, problems: Mapping[str, Sequence[Problem]], length: int
) -> tuple[dict[str, list[Demonstration]], Removed]:
    """Remove demonstrations whose prompt shares `length` words in a row with an evaluation problem, or contains a
    shorter one."""
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
    recipe = within_context(recipe)
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


def solved_once(
    file: Path, recipe: Recipe, tasks: Mapping[str, Task], drawn: Drawn, num_samples: int
) -> Collection[Problem]:
    """Return the solved problems that `file` has; without the file, find them and write it.

    A resumed run must leave out the same demonstrations, and sampling again may round differently.
    """
    if file.is_file():
        known = {tuple(each) for each in parse_json(file.read_text(encoding="utf-8"))["solved"]}
        problems = {item.problem for items in drawn.values() for item in items}
        return {problem for problem in problems if (problem.prompt, problem.answer) in known}
    solved = solved_problems(recipe, tasks, drawn, num_samples)
    with write_errors(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, {"solved": sorted([problem.prompt, problem.answer] for problem in solved)})
    return solved


def within_context(recipe: Recipe) -> Recipe:
    """Return the recipe with prompts and completions that fit the model, which SFT may give more room than it has."""
    config = load_config(recipe.model.required_path, trust_remote_code=recipe.model.trust_remote_code)
    longest = getattr(config, "max_position_embeddings", None) or recipe.rollout.context
    if longest >= recipe.rollout.context:
        return recipe
    prompt = min(recipe.rollout.max_prompt_tokens, longest // 2)
    length = UnlimitedSettings(max_length=longest - prompt)
    return replaced(recipe, {"rollout.context": longest, "rollout.max_prompt_tokens": prompt, "length": length})
