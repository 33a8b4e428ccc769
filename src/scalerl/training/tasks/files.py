"""Tasks from a user's problems: in a file, in a Hugging Face data set, or returned by a function."""

import dataclasses
import functools
import inspect
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from scalerl.errors import TaskError
from scalerl.recipe.import_path import one_line
from scalerl.training.tasks.rows import Row, numbered, read_all, read_rows, shown
from scalerl.training.tasks.task import Demonstration, Task, without
from scalerl.training.types import Problem, derive_seed

DEFAULT_EVALUATION = 1000
"""Number of problems in an evaluation set of a generated task, if the recipe does not set it."""

MOST_ROWS = 5_000_000
"""More rows than any set of problems has; a function that yields more is assumed to be endless."""

_SYNONYMS = {
    "prompt": ("question", "problem", "query"),
    "answer": ("target", "label", "reference", "ground_truth"),
}
"""Other names of fields, by their default names.

Names of fields that often contain a part of a problem (instruction, input) or more than its answer (solution, output)
are not included.
"""


def _problems(
    name: str,
    num_evaluation: int | None,
    evaluation_seed: int,
    /,
    *,
    path: str = "",
    evaluation_path: str = "",
    dataset: str = "",
    subset: str = "",
    split: str = "train",
    evaluation_split: str = "",
    prompt_field: str = "prompt",
    answer_field: str = "answer",
    id_field: str = "id",
    demonstration_field: str = "",
    answer_pattern: str = "",
) -> Task:
    """Problems from a file or a Hugging Face data set; `num_evaluation` of them, or of a second one, are withheld.

    `name` is the name of the task. `answer_pattern` extracts the answer from a longer reference, for example
    "#### (.+)" for GSM8K.
    """
    fields = Fields(
        prompt=prompt_field,
        answer=answer_field,
        id=id_field,
        demonstration=demonstration_field,
        answer_pattern=answer_pattern,
    )
    rows, held = read_rows(name, path, evaluation_path, dataset, subset, split, evaluation_split)
    return _rows_task(name, num_evaluation, evaluation_seed, rows, held, fields)


file = functools.partial(_problems, "file")
hub = functools.partial(_problems, "hub")


def function_task(function: Callable[..., Any], name: str, num_evaluation: int | None, evaluation_seed: int) -> Task:
    """Build a task from a user's function with its settings bound; `name` is its import path.

    A function without positional arguments returns or yields rows: {"prompt": ..., "answer": ...}, optionally with "id"
    and "demonstration". A function of (num_evaluation, evaluation_seed) returns a Task.
    """
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    num_arguments = sum(each.kind in kinds for each in inspect.signature(function).parameters.values())
    if num_arguments not in (0, 2):
        raise TaskError(
            f'"{name}" takes {num_arguments} positional arguments but must take none and return rows, or take '
            f"(num_evaluation, evaluation_seed) and return a Task; settings come after a *"
        )
    try:
        num = DEFAULT_EVALUATION if num_evaluation is None else num_evaluation
        result = function(num, evaluation_seed) if num_arguments else function()
        # A generator runs only now, so its errors are raised here.
        values = result if isinstance(result, Task) else _listed(name, result)
    except TaskError:
        raise
    # A module that is meant to be run as a script may call sys.exit.
    except (Exception, SystemExit) as error:
        raise TaskError(f'"{name}" raised {one_line(error)}') from error
    if isinstance(values, Task):
        return values
    if num_arguments:
        raise TaskError(f'"{name}" takes (num_evaluation, evaluation_seed), so it must return a Task, not rows')
    rows = numbered(name, "row", enumerate(values, start=1))
    has_demonstrations = "demonstration" in rows[0].values
    demonstration = "demonstration" if has_demonstrations else ""
    fields = Fields(demonstration=demonstration, settable=False)
    return _rows_task(name, num_evaluation, evaluation_seed, rows, None, fields)


def _listed(name: str, result: Any) -> list[Any]:
    if isinstance(result, str | Mapping) or not isinstance(result, Iterable):
        raise TaskError(
            f'"{name}" returned {type(result).__name__} but must return rows: {{"prompt": ..., "answer": ...}}'
        )
    rows = list(islice(result, MOST_ROWS + 1))
    if len(rows) > MOST_ROWS:
        raise TaskError(f'"{name}" returned more than {MOST_ROWS} rows: it may be endless')
    return rows


Entry = tuple[Row, Problem, str]
"""A row, its problem and a completion to imitate, which may be empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """The names of the fields in rows."""

    prompt: str = "prompt"
    answer: str = "answer"
    """Empty if rows have no reference, which is allowed for demonstrations; graders then have no verdict."""
    id: str = "id"
    demonstration: str = ""
    """The field with a completion to imitate; empty if there is none."""
    answer_pattern: str = ""
    """A regular expression with one group, the answer in a longer reference; the last match counts."""
    settable: bool = True
    """Whether the user can set these names; errors then mention the settings."""

    def __post_init__(self) -> None:
        try:
            num_groups = re.compile(self.answer_pattern).groups
        except re.error as error:
            raise TaskError(f'answer_pattern "{self.answer_pattern}" is not a regular expression: {error}') from None
        if self.answer_pattern and num_groups != 1:
            raise TaskError(
                f'answer_pattern "{self.answer_pattern}" has {num_groups} groups but must have one, the answer: '
                f"write (...) around it, and (?:...) around anything else"
            )

    def present_in(self, row: Row) -> "Fields":
        """Return the fields with each default name that the row lacks replaced by its only synonym in the row."""

        def name_in_row(name: str) -> str:
            others = [other for other in _SYNONYMS.get(name, ()) if other in row.values]
            return others[0] if name not in row.values and len(others) == 1 else name

        return dataclasses.replace(self, prompt=name_in_row(self.prompt), answer=name_in_row(self.answer))

    def read(self, row: Row, task: str) -> Entry:
        """Return the problem of a row, and the completion if there is a field for it."""
        problem_id = row.place.replace(" ", "-") if row.values.get(self.id) is None else self._text(row, self.id, "id")
        chat = row.turns(self.prompt)
        is_shown = self.demonstration == self.prompt and chat[-1:] and chat[-1][0] == "assistant"
        turns = chat[:-1] if is_shown else chat
        if chat and (not turns or turns[-1][0] not in ("user", "tool")):
            raise row.fault(
                f'the chat in "{self.prompt}" must end with a user turn before the answer; to learn from an assistant '
                f'turn that ends it, set demonstration_field = "{self.prompt}"'
            )
        prompt = _text_of(turns) if turns else self._text(row, self.prompt, "prompt")
        problem = Problem(id=problem_id, prompt=prompt, answer=self._answer(row), task=task, messages=turns)
        return row, problem, self._completion(row)

    def _answer(self, row: Row) -> str:
        reference = self._text(row, self.answer, "answer") if self.answer else ""
        if not (self.answer and self.answer_pattern):
            return reference
        matches = re.findall(self.answer_pattern, reference)
        if not matches or not matches[-1].strip():
            pattern = f'answer_pattern "{self.answer_pattern}"'
            raise row.fault(f"no answer in the reference: {pattern} does not match {shown(reference)}")
        return matches[-1].strip()

    def _completion(self, row: Row) -> str:
        if not self.demonstration:
            return ""
        turns = row.turns(self.demonstration)
        if turns and turns[-1][0] != "assistant":
            raise row.fault(f'the chat in "{self.demonstration}" must end with an assistant turn to imitate')
        return turns[-1][1] if turns else self._text(row, self.demonstration, "demonstration")

    def _text(self, row: Row, field: str, name: str) -> str:
        hint = f" (set {name}_field if it has another name)" if self.settable else ""
        return row.text(field, hint)


def _text_of(turns: Sequence[tuple[str, str]]) -> str:
    """Return a chat as one text; a single user turn is unchanged, so that it equals the same problem without a chat."""
    if len(turns) == 1 and turns[0][0] == "user":
        return turns[0][1]
    return "\n\n".join(f"{role}: {content}" for role, content in turns)


def _rows_task(
    name: str, num: int | None, seed: int, rows: Sequence[Row], held: Sequence[Row] | None, given: Fields
) -> Task:
    """Build a task from rows, graded by `exact`. The id of a row without an id field is its number."""
    fields = given.present_in(rows[0])
    read = functools.partial(fields.read, task=name)
    entries = read_all(read, rows)
    apart = read_all(read, held or ())
    task = entries_task(name, num, seed, entries, apart, grader="exact")
    if fields == given:
        return task
    notice = f'{rows[0].where}: the prompt is taken from "{fields.prompt}" and the answer from "{fields.answer}"'
    return dataclasses.replace(task, notice=notice)


def entries_task(
    name: str, num: int | None, seed: int, entries: Sequence[Entry], held: Sequence[Entry], *, grader: str
) -> Task:
    """Build a task from entries; `num` of them, or of `held` if there are any, are withheld for evaluation.

    None means all of them, in order, for a set that is only evaluated on.
    """
    completions = _completions(entries)
    problems = [problem for _, problem, _ in entries]
    pool = problems
    where = (held or entries)[0][0].where
    if held:
        _completions(held)
        pool = [dataclasses.replace(problem, id=f"evaluation/{problem.id}") for _, problem, _ in held]
    if num is not None and num > len(pool):
        raise TaskError(
            f"{where} has {len(pool)} problem{'s' * (len(pool) != 1)}, but evaluation.num_prompts is {num}: lower it, "
            f"or add problems"
        )
    withheld = pool if num is None else random.Random(derive_seed("withheld problems", seed)).sample(pool, num)
    training = without(problems, withheld)
    if not training and num is not None:
        equal = "" if len(withheld) >= len(problems) else f" or equal to one of the {len(withheld)} that are"
        raise TaskError(
            f"{entries[0][0].where}: all its {len(problems)} problems are withheld for evaluation{equal}, so none are "
            f"left to train on: add different problems, or lower evaluation.num_prompts"
        )
    label = "code demonstrations" if grader == "code" else "file demonstrations"

    def demonstrations(num: int, seed: int) -> list[Demonstration]:
        order = random.Random(derive_seed(label, seed)).sample(training, min(num, len(training)))
        return [Demonstration(problem=problem, completion=completions[problem.id]) for problem in order]

    return Task(
        name=name,
        training=training,
        evaluation=tuple(withheld),
        grader=grader,
        demonstrations=demonstrations if all(completions.values()) else None,
    )


def _completions(entries: Sequence[Entry]) -> dict[str, str]:
    """Return the completions by the id of their problem; ids must be unique."""
    places: dict[str, str] = {}
    for row, problem, _ in entries:
        if problem.id in places:
            raise row.fault(f'the id "{problem.id}" is already used in {places[problem.id]}')
        places[problem.id] = row.place
    return {problem.id: completion for _, problem, completion in entries}
