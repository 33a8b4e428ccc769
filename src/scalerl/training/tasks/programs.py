"""Problems that ask for a small function: "f(x): square it, then add 3. f(4) = 19".

Each problem describes, in words and with one example, a few steps on a number, a list of numbers or a word. The program
is tested with inputs that the prompt does not show, so that repeating the example does not pass.
"""

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from scalerl.training.graders.sandbox.job import Reference
from scalerl.training.tasks.procedural import Draw, Drawn, check_chosen, check_ranges, generated
from scalerl.training.types import Problem, derive_seed

_LETTERS = "abcde"


class ProgramStep(NamedTuple):
    """A kind of step; {k} is a number and {c}, {d} are letters, which are drawn for each problem."""

    words: str
    code: str
    """An expression with the argument's name, {v}."""
    becomes: str = ""
    """The kind of the result, if it differs from the argument's."""


NUMBERS = (
    ProgramStep("add {k}", "{v}+{k}"),
    ProgramStep("subtract {k}", "{v}-{k}"),
    ProgramStep("multiply by {k}", "{v}*{k}"),
    ProgramStep("take the remainder by {k}", "{v}%{k}"),
    ProgramStep("divide by {k} and round down", "{v}//{k}"),
    ProgramStep("square it", "{v}*{v}"),
    ProgramStep("negate it", "-{v}"),
    ProgramStep("take the larger of it and {k}", "max({v},{k})"),
    ProgramStep("take the smaller of it and {k}", "min({v},{k})"),
    ProgramStep("drop the sign", "abs({v})"),
)
LISTS = (
    ProgramStep("reverse it", "{v}[::-1]"),
    ProgramStep("sort it", "sorted({v})"),
    ProgramStep("add {k} to each", "[i+{k} for i in {v}]"),
    ProgramStep("multiply each by {k}", "[i*{k} for i in {v}]"),
    ProgramStep("keep those above {k}", "[i for i in {v} if i>{k}]"),
    ProgramStep("keep the even ones", "[i for i in {v} if i%2==0]"),
    ProgramStep("keep the first {k}", "{v}[:{k}]"),
    ProgramStep("leave out the first {k}", "{v}[{k}:]"),
    ProgramStep("sum it", "sum({v})", "numbers"),
    ProgramStep("count it", "len({v})", "numbers"),
)
STRINGS = (
    ProgramStep("reverse it", "{v}[::-1]"),
    ProgramStep("write it {k} times", "{v}*{k}"),
    ProgramStep("keep the first {k}", "{v}[:{k}]"),
    ProgramStep("leave out the first {k}", "{v}[{k}:]"),
    ProgramStep("put {c} before it", "'{c}'+{v}"),
    ProgramStep("put {c} after it", "{v}+'{c}'"),
    ProgramStep("replace {c} by {d}", "{v}.replace('{c}','{d}')"),
    ProgramStep("sort its letters", "''.join(sorted({v}))"),
    ProgramStep("count the {c}", "{v}.count('{c}')", "numbers"),
    ProgramStep("count it", "len({v})", "numbers"),
)
STEPS: Mapping[str, Sequence[ProgramStep]] = {"numbers": NUMBERS, "lists": LISTS, "strings": STRINGS}


@functools.cache
def _function(code: str) -> Callable[[Any], Any]:
    """Return an expression of the tables above, with values filled in, as a function of v."""
    return eval(f"lambda v: {code}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Specified:
    """A function to be written: its steps with drawn values, and inputs for the example and the tests."""

    kind: str
    steps: tuple[tuple[ProgramStep, int, str, str], ...]
    inputs: tuple[Any, ...]
    """The first input is shown in the prompt, the others are withheld."""

    def value(self, argument: Any) -> Any:
        for step, k, c, d in self.steps:
            argument = _function(step.code.format(v="v", k=k, c=c, d=d))(argument)
        return argument


@generated(grader="code", num_problems=10_000, remedy="raise max_steps or allow more kinds")
def programs(
    *,
    kinds: str = "numbers lists strings",
    min_steps: int = 1,
    max_steps: int = 3,
    num_tests: int = 6,
    show_example: bool = True,
    slip_rate: float = 0.0,
) -> Draw:
    """Return small functions to be written in Python; more steps are harder.

    `show_example = false` omits the example from prompts, which halves their length. `slip_rate` is the share of wrong
    steps in demonstrations, so that a base model has something left to learn.
    """
    chosen = kinds.split()
    check_ranges(min_steps=(min_steps, 1), max_steps=(max_steps, min_steps), num_tests=(num_tests, 2))
    check_ranges(slip_rate=(slip_rate, 0, 1))
    check_chosen("kinds", kinds, chosen, STEPS)

    def draw(stream: random.Random) -> Drawn:
        made = specified(stream, stream.choice(chosen), stream.randint(min_steps, max_steps), num_tests)
        return Drawn(_problem(made, show_example), lambda stream: _program(made, stream, slip_rate))

    return draw


def specified(stream: random.Random, kind: str, num_steps: int, num_tests: int) -> Specified:
    """Return a function of this many steps whose value depends on its argument."""
    while True:
        current = kind
        steps: list[tuple[ProgramStep, int, str, str]] = []
        for _ in range(num_steps):
            step = stream.choice(STEPS[current])
            c, d = stream.sample(_LETTERS, 2)
            steps.append((step, stream.randint(2, 9), c, d))
            current = step.becomes or current
        # Inputs follow from the steps, because the same function with another example would be the same problem.
        inputs = random.Random(derive_seed("programs inputs", kind, _described(steps)))
        made = Specified(kind=kind, steps=tuple(steps), inputs=_inputs(inputs, kind, num_tests + 1))
        values = [repr(made.value(argument)) for argument in made.inputs]
        # A constant or the argument itself must not pass, and numbers must not become too long for the prompt.
        unchanged = all(made.value(argument) == argument for argument in made.inputs)
        if len(set(values)) > 1 and not unchanged and max(map(len, values)) <= 40:
            return made


def _inputs(stream: random.Random, kind: str, num: int) -> tuple[Any, ...]:
    if kind == "numbers":
        return tuple(stream.sample(range(-20, 31), num)) if num <= 40 else tuple(range(-20, num - 20))
    if kind == "lists":
        return tuple(_digits(stream, stream.randint(2, 6)) for _ in range(num))
    return tuple("".join(stream.choices(_LETTERS, k=stream.randint(2, 6))) for _ in range(num))


def _digits(stream: random.Random, num: int) -> list[int]:
    return [stream.randint(0, 9) for _ in range(num)]


_NAMES = {"numbers": "x", "lists": "a", "strings": "s"}


def _problem(made: Specified, show_example: bool) -> Problem:
    name = _NAMES[made.kind]
    shown = made.inputs[0]
    prompt = f"f({name}): {_described(made.steps)}."
    if show_example:
        prompt += f" f({shown!r}) = {made.value(shown)!r}"
    reference = Reference.of_calls("f", [([argument], made.value(argument)) for argument in made.inputs])
    return Problem(id=f"{name}: {_described(made.steps)}", prompt=prompt, answer=reference.to_text(), task="programs")


def _described(steps: Sequence[tuple[ProgramStep, int, str, str]]) -> str:
    return ", then ".join(step.words.format(k=k, c=c, d=d) for step, k, c, d in steps)


def _program(made: Specified, stream: random.Random, slip_rate: float) -> str:
    name = _NAMES[made.kind]
    current = made.kind
    lines = [f"def f({name}):"]
    for step, k, c, d in made.steps:
        written = step
        number = k
        if stream.random() < slip_rate:
            written = stream.choice(STEPS[current])
            number = stream.randint(2, 9)
        lines.append(f" {name}={written.code.format(v=name, k=number, c=c, d=d)}")
        current = step.becomes or current
    return "\n".join([*lines, f" return {name}"])
