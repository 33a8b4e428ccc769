"""Word problems of one to four steps in plain English, with the steps written out as demonstrations.

A story begins with a number of things, every further sentence changes it by one operation, and a question ends it. The
tables below contain the sentences. All values are positive whole numbers.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from scalerl.training.answer_format import THINKING_END, THINKING_START
from scalerl.training.tasks.procedural import OPERATIONS, Draw, Drawn, check_ranges, generated
from scalerl.training.types import Problem

_TIMES = {2: "twice", 3: "three times", 4: "four times"}


class Sentence(NamedTuple):
    """A sentence that changes the number of things by one operation."""

    text: str
    operation: str
    explained: str
    """The words after the equation in a demonstration."""
    question: str = ""
    """The final question; empty for "how many are there now"."""
    numbers: tuple[int, ...] = ()
    """Allowed values of the other number; empty for all up to max_number."""


_NAMES = "Ada,Ben,Carla,David,Emma,Farid,Grace,Hugo,Ines,Jonas,Kira,Liam,Mia,Noor,Oscar,Paula".split(",")  # noqa: SIM905
_THINGS = ("apples", "beads", "books", "buttons", "cards", "coins", "marbles", "pencils", "shells", "stamps")
_CONTAINERS = ("bags", "baskets", "boxes", "drawers", "jars")
_PEOPLE = ("children", "cousins", "friends", "neighbours")

_OPENINGS = (
    "{name} has {number} {things}.",
    "{name} starts the week with {number} {things}.",
    "In the attic {name} finds {number} {things}.",
)
_PRODUCTS = (
    "{name} has {first} {containers} with {number} {things} in each.",
    "{name} buys {first} packs of {number} {things}.",
)
_OF_RIVAL = "How many {things} does {rival} have?"
_EVENTS = (
    Sentence("{name} buys {number} more.", "+", "with those bought"),
    Sentence("A neighbour gives {name} {number} more {things}.", "+", "with the present"),
    Sentence("Later {name} finds another {number} under the bed.", "+", "with those found"),
    Sentence("{name} gives {number} of them to {other}.", "-", "are left"),
    Sentence("On the way home {name} loses {number} {things}.", "-", "are not lost"),
    Sentence("At the market {name} sells {number} of them.", "-", "are not sold"),
    Sentence("A month later {name} has {times} as many.", "*", "a month later", numbers=tuple(_TIMES)),
    Sentence("{name} gives half of the {things} to {other}.", "/", "is the other half", numbers=(2,)),
)
_CLOSINGS = (
    Sentence(
        "{rival} has {number} {things}.", "+", "together", "How many {things} do {name} and {rival} have together?"
    ),
    Sentence("{rival} has {number} more {things} than {name}.", "+", "is what the other has", _OF_RIVAL),
    Sentence("{rival} has {number} fewer {things} than {name}.", "-", "is what the other has", _OF_RIVAL),
    Sentence("{rival} has {times} as many {things} as {name}.", "*", "is what the other has", _OF_RIVAL, tuple(_TIMES)),
    Sentence(
        "{name} sells every one of the {things} for {number} dollars.",
        "*",
        "dollars in all",
        "How many dollars does {name} get?",
        tuple(range(2, 10)),
    ),
    Sentence(
        "{name} shares all of the {things} equally among {number} {people}.",
        "/",
        "for each",
        "How many {things} does each of them get?",
    ),
)


@generated(grader="numeric", num_problems=10_000, remedy="raise max_number or max_steps")
def words(*, min_steps: int = 1, max_steps: int = 4, max_number: int = 20) -> Draw:
    """Word problems graded by their numbers; more steps and larger numbers are harder."""
    check_ranges(min_steps=(min_steps, 1), max_steps=(max_steps, min_steps), max_number=(max_number, 5))

    def draw(stream: random.Random) -> Drawn:
        story = draw_story(stream, num_steps=stream.randint(min_steps, max_steps), max_number=max_number)
        problem = Problem(id="", prompt=story.text, answer=str(story.value), task="words")
        shown = f"{THINKING_START}{' '.join(story.steps)}{THINKING_END}{story.value}"
        return Drawn(replace(problem, id=problem.content_hash), lambda stream: shown)

    return draw


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A word problem and its solution."""

    text: str
    steps: tuple[str, ...]
    """Equations with their meaning: "24 - 7 = 17 are left."."""
    value: int


def draw_story(stream: random.Random, *, num_steps: int, max_number: int) -> Story:
    """Draw a story that needs `num_steps` operations to solve."""
    name, other, rival = stream.sample(_NAMES, 3)
    scene = {
        "name": name,
        "other": other,
        "rival": rival,
        "things": stream.choice(_THINGS),
        "containers": stream.choice(_CONTAINERS),
        "people": stream.choice(_PEOPLE),
    }
    value = stream.randint(4, max_number)
    steps: list[str] = []
    if stream.random() < 1 / 3:
        first = stream.randint(2, 9)
        sentences = [stream.choice(_PRODUCTS).format(first=first, number=value, **scene)]
        steps.append(f"{first} * {value} = {first * value} at first.")
        value *= first
    else:
        sentences = [stream.choice(_OPENINGS).format(number=value, **scene)]
    question = ""
    while len(steps) < num_steps:
        last = len(steps) == num_steps - 1
        turns = _CLOSINGS if last and stream.random() < 1 / 2 else _EVENTS
        turn, number = _draw_turn(stream, turns, value, max_number)
        result = OPERATIONS[turn.operation](value, number)
        sentences.append(turn.text.format(number=number, times=_TIMES.get(number), **scene))
        steps.append(f"{value} {turn.operation} {number} = {result} {turn.explained}.")
        value, question = result, turn.question
    sentences.append((question or "How many {things} does {name} have now?").format(**scene))
    return Story(text=" ".join(sentences), steps=tuple(steps), value=value)


def _draw_turn(stream: random.Random, turns: Sequence[Sentence], value: int, max_number: int) -> tuple[Sentence, int]:
    """Draw a turn that is possible for this value, and its number. Additions are always possible."""
    allowed = [(turn, numbers) for turn in turns if (numbers := _numbers(turn, value, max_number))]
    turn, numbers = stream.choice(allowed)
    return turn, stream.choice(numbers)


def _numbers(turn: Sentence, value: int, max_number: int) -> list[int]:
    allowed = {
        "+": lambda number: True,
        "-": lambda number: number < value,
        # Otherwise a few doublings in a row would give very large numbers.
        "*": lambda number: number * value <= 20 * max_number,
        "/": lambda number: value % number == 0 and number < value,
    }[turn.operation]
    return [number for number in turn.numbers or range(2, max_number + 1) if allowed(number)]
