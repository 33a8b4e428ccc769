"""Turn rows of data into problems, choose which are withheld, and report errors with the row's place.

A row is a mapping, from a line of a file, a row of a table or a value that a function returned.
"""

import dataclasses
import json
import math
import numbers
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from scalerl.errors import TaskError
from scalerl.tasks.task import Demonstration, Task, without
from scalerl.types import Problem, derive_seed

Turns = tuple[tuple[str, str], ...]
"""A chat: (role, content) of each turn."""

SYNONYMS = {
    "prompt": ("question", "problem", "query"),
    "answer": ("target", "label", "reference", "ground_truth"),
}
"""What fields are also called, by the names that are taken if none are set.

Not what often holds a part of a problem (instruction, input) or more than its answer (solution, output).
"""

ROLES = ("system", "developer", "user", "assistant", "tool")

_LONE_SURROGATE = re.compile("[\\ud800-\\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row and where it comes from."""

    where: str
    """The file, data set or function."""
    unit: str
    """What a row is called there: "line" or "row"."""
    number: int
    values: Mapping[str, Any]

    @property
    def place(self) -> str:
        return f"{self.where}, {self.unit} {self.number}"


def numbered(where: str, unit: str, values: Iterable[tuple[int, Any]]) -> Sequence[Row]:
    """Return rows from (number, value) pairs; raise TaskError unless there is one and each value is a mapping."""
    rows = [Row(where=where, unit=unit, number=number, values=value) for number, value in values]
    for row in rows:
        if not isinstance(row.values, Mapping):
            raise TaskError(f"{row.place}: an object with fields is needed, not {type(row.values).__name__}")
    if not rows:
        raise TaskError(f"{where} holds no problems: it is empty")
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """The names of a row's fields."""

    prompt: str = "prompt"
    answer: str = "answer"
    """Empty if rows have no reference, as demonstrations may; then no grader has a verdict."""
    id: str = "id"
    demonstration: str = ""
    """Field with a completion to imitate; empty if rows have none."""
    answer_pattern: str = ""
    """A regular expression whose one group is the answer within a longer reference; the last match counts."""
    settable: bool = True
    """Whether the user can set the field names, so that errors may mention the settings."""

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

    def found_in(self, row: Row) -> "Fields":
        """Return the fields with a default name that the row lacks replaced by the one synonym that it has."""

        def found(name: str) -> str:
            others = [other for other in SYNONYMS.get(name, ()) if other in row.values]
            return others[0] if name not in row.values and len(others) == 1 else name

        return dataclasses.replace(self, prompt=found(self.prompt), answer=found(self.answer))

    def prompt_of(self, row: Row) -> tuple[str, Turns]:
        """Return the problem as text, and its turns where it is a chat."""
        if not _is_chat(row.values.get(self.prompt)):
            return self._text(row, "prompt", self.prompt), ()
        turns = _read_turns(row.values[self.prompt], f'{row.place}: the field "{self.prompt}"')
        if turns[-1][0] == "assistant":
            if self.demonstration != self.prompt:
                raise TaskError(
                    f'{row.place}: the chat in "{self.prompt}" ends with an assistant turn, so nothing is asked: '
                    f'remove it, or set demonstration_field = "{self.prompt}" to learn from it'
                )
            turns = turns[:-1]
        if not turns or turns[-1][0] not in ("user", "tool"):
            raise TaskError(f'{row.place}: the chat in "{self.prompt}" must have a user turn before the answer')
        return _text_of(turns), turns

    def answer_of(self, row: Row) -> str:
        if not self.answer:
            return ""
        reference = self._text(row, "answer", self.answer)
        if not self.answer_pattern:
            return reference
        matches = re.findall(self.answer_pattern, reference)
        if not matches or not matches[-1].strip():
            raise TaskError(
                f'{row.place}: no answer in the reference: answer_pattern "{self.answer_pattern}" finds none in '
                f"{_shown(reference)}"
            )
        return matches[-1].strip()

    def demonstration_of(self, row: Row) -> str:
        if not _is_chat(row.values.get(self.demonstration)):
            return self._text(row, "demonstration", self.demonstration)
        turns = _read_turns(row.values[self.demonstration], f'{row.place}: the field "{self.demonstration}"')
        if turns[-1][0] != "assistant":
            raise TaskError(
                f'{row.place}: the chat in "{self.demonstration}" must end with an assistant turn, the '
                f"completion to imitate"
            )
        return turns[-1][1]

    def id_of(self, row: Row) -> str:
        return f"{row.unit}-{row.number}" if row.values.get(self.id) is None else self._text(row, "id", self.id)

    def _text(self, row: Row, name: str, field: str) -> str:
        if field not in row.values:
            hint = f" (set {name}_field if it has another name)" if self.settable else ""
            has = ", ".join(map(str, row.values)) or "no fields"
            raise TaskError(f'{row.place}: the field "{field}" is missing; it has {has}{hint}')
        value = row.values[field]
        if not _is_text(value):
            raise TaskError(f'{row.place}: the field "{field}" must be text or a number, not {_shown(value)}')
        return str(value)


def rows_task(
    name: str,
    num_evaluation: int | None,
    evaluation_seed: int,
    *,
    rows: Sequence[Row],
    fields: Fields,
    evaluation_rows: Sequence[Row] | None = None,
) -> Task:
    """Build a task from rows, graded by `exact`.

    A row without the id field gets its number as id. With a demonstration field, every row must have a completion.
    """
    given, fields = fields, fields.found_in(rows[0])

    def read(row: Row) -> Entry:
        (prompt, turns), answer = fields.prompt_of(row), fields.answer_of(row)
        problem = Problem(id=fields.id_of(row), prompt=prompt, answer=answer, task=name, messages=turns)
        return problem, fields.demonstration_of(row) if fields.demonstration else ""

    task = entries_task(
        name,
        num_evaluation,
        evaluation_seed,
        rows=rows,
        evaluation_rows=evaluation_rows,
        read=read,
        grader="exact",
        label="file demonstrations",
    )
    if fields == given:
        return task
    notice = f'{rows[0].where}: the prompt is taken from "{fields.prompt}" and the answer from "{fields.answer}"'
    return dataclasses.replace(task, notice=notice)


Entry = tuple[Problem, str]
"""A problem and a completion to imitate; empty if there is none."""


def entries_task(
    name: str,
    num_evaluation: int | None,
    evaluation_seed: int,
    *,
    rows: Sequence[Row],
    evaluation_rows: Sequence[Row] | None,
    read: Callable[[Row], Entry],
    grader: str,
    label: str,
) -> Task:
    """Build a task from rows that `read` makes problems of; `num_evaluation` rows, or evaluation rows, are withheld.

    With None all of them are, in their order: a set that is only evaluated on. The order of demonstrations follows from
    `label`.
    """
    entries = _entries(rows, read)
    pool = _entries(evaluation_rows, read, prefix="evaluation/") if evaluation_rows else entries
    problems = [problem for problem, _ in entries.values()]
    evaluation = _withhold(
        [problem for problem, _ in pool.values()], num_evaluation, evaluation_seed, (evaluation_rows or rows)[0].where
    )
    training = without(problems, evaluation)
    if not training and num_evaluation is not None:
        equal = "" if len(evaluation) >= len(problems) else f" or equal to one of the {len(evaluation)} that are"
        raise TaskError(
            f"{rows[0].where}: all its {len(problems)} problems are withheld for evaluation{equal}, none are left to "
            f"train on: add different problems, or lower evaluation.num_prompts"
        )

    def demonstrations(num: int, seed: int) -> list[Demonstration]:
        order = random.Random(derive_seed(label, seed)).sample(training, min(num, len(training)))
        return [Demonstration(problem=problem, completion=entries[problem.id][1]) for problem in order]

    return Task(
        name=name,
        training=training,
        evaluation=evaluation,
        grader=grader,
        demonstrations=demonstrations if all(completion for _, completion in entries.values()) else None,
    )


def _entries(rows: Sequence[Row], read: Callable[[Row], Entry], prefix: str = "") -> dict[str, Entry]:
    """Return the entries by the id of their problem."""
    entries: dict[str, Entry] = {}
    places: dict[str, str] = {}
    for row in rows:
        problem, completion = read(row)
        if problem.id in places:
            raise TaskError(f'{row.place}: the id "{problem.id}" is already used in {places[problem.id]}')
        places[problem.id] = f"{row.unit} {row.number}"
        problem = dataclasses.replace(problem, id=prefix + problem.id)
        entries[problem.id] = problem, completion
    return entries


def _withhold(pool: Sequence[Problem], num: int | None, seed: int, where: str) -> tuple[Problem, ...]:
    if num is None:
        return tuple(pool)
    if num > len(pool):
        raise TaskError(
            f"{where} holds {len(pool)} problem{'s' * (len(pool) != 1)}, but {num} are to be evaluated on: lower "
            f"evaluation.num_prompts, or add problems"
        )
    return tuple(random.Random(derive_seed("withheld problems", seed)).sample(pool, num))


def _is_chat(value: Any) -> bool:
    """Return whether a value is meant as a list of messages."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _read_turns(value: Sequence[Any], place: str) -> Turns:
    """Return the turns of a list of messages, {"role": ..., "content": ...}; errors begin with `place`."""
    if not value:
        raise TaskError(f"{place} is an empty list, but a chat has at least one message")
    turns = []
    for number, message in enumerate(value, start=1):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise TaskError(
                f'{place}: message {number} must have a "role" and a "content", and it is {_shown(message)}'
            )
        if message["role"] not in ROLES:
            raise TaskError(f'{place}: message {number} has the role "{message["role"]}"; roles are {", ".join(ROLES)}')
        turns.append((message["role"], _content(message.get("content"), f"{place}: message {number}")))
    return tuple(turns)


def _content(content: Any, place: str) -> str:
    """Return the text of a message; some data sets write it as a list of parts."""
    if _is_chat(content) and content and all(isinstance(p, Mapping) and p.get("type") == "text" for p in content):
        content = "".join(str(part.get("text", "")) for part in content)
    if not isinstance(content, str) or not _is_text(content):
        raise TaskError(f"{place} must have text as its content, not {_shown(content)}")
    return content


def _text_of(turns: Turns) -> str:
    """Return a chat as one text: a single user turn as it is, so that it equals the same problem without a chat."""
    if len(turns) == 1 and turns[0][0] == "user":
        return turns[0][1]
    return "\n\n".join(f"{role}: {content}" for role, content in turns)


def _is_text(value: Any) -> bool:
    """Return whether a value is text or a number; not for lists, null, booleans or NaN (null in some tables)."""
    if isinstance(value, str):
        # A lone surrogate, which JSON can spell as \ud800, is not a character; no tokenizer accepts it.
        return bool(value.strip()) and not _LONE_SURROGATE.search(value)
    if isinstance(value, numbers.Integral):
        return not isinstance(value, bool)
    return isinstance(value, numbers.Real | Decimal) and math.isfinite(value)


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:28]} ... {text[-28:]}"
