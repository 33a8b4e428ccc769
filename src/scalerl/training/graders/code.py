"""Grade a program by running tests, in another process than the program; see graders/sandbox.

The reference answer of a code problem is a text made by Reference.to_text: asserts, or pairs of stdin and stdout. A
program that is wrong, crashes or exceeds a limit is graded False. Only if the tests are unusable is there no verdict
(None).
"""

import functools
import re
from itertools import zip_longest

from scalerl.training.answer_format import THINKING_END, THINKING_START
from scalerl.training.graders.answer import after_thinking
from scalerl.training.graders.sandbox.job import BadTests, Outcome, Reference, RunLimits
from scalerl.training.graders.sandbox.runner import Runner
from scalerl.training.graders.values import Score

_FENCE = re.compile(r"^[ \t]*```[ \t]*([\w+-]*)[^\n]*$", re.MULTILINE)
_PYTHON = {"", "python", "python3", "py"}


def code(
    text: str,
    answer: str,
    /,
    *,
    thinking_start: str = THINKING_START,
    thinking_end: str = THINKING_END,
    timeout_s: float = 6.0,
    cpu_limit_s: float = 4.0,
    memory_limit_mb: int = 512,
    share: bool = False,
) -> Score:
    """Return whether the program in the answer passes every test of the reference, and the kind of outcome.

    With `share`, the value is the share of tests passed, and 1 only if all are. It is None if the tests are unusable.
    """
    limits = RunLimits(timeout_s=timeout_s, cpu_limit_s=cpu_limit_s, memory_limit_mb=memory_limit_mb)
    # Keep leading spaces: a continuation of a function needs them.
    given = after_thinking(text, thinking_start=thinking_start, thinking_end=thinking_end)
    outcome = run_program(given, answer, limits)
    value = outcome.share if share and outcome.correct is not None else outcome.correct
    return Score(value=value, outcome=outcome.kind)


code_share = functools.partial(code, share=True)


def run_program(given: str | None, answer: str, limits: RunLimits | None = None) -> Outcome:
    """Run the program in `given` against the tests in `answer` (see Reference.to_text).

    `given` is the completion after thinking; None if thinking never ended.
    """
    try:
        reference = Reference.from_text(answer)
    except BadTests as error:
        return Outcome(kind="bad_tests", detail=str(error))
    program = None if given is None else program_in(given, reference.entry_point)
    if program is None:
        return Outcome(kind="no_program", num_checks=1)
    return _runner().run(program, reference, limits or RunLimits())


def program_in(given: str, entry_point: str = "") -> str | None:
    """Return the program in an answer: the last fenced block of Python, or the whole answer if it has no fences.

    If some blocks define the entry point, return the last of them. Return None if the program is empty or all fenced
    blocks are in other languages.
    """
    fences = list(_FENCE.finditer(given))
    blocks = [
        # A truncated answer has no last fence.
        given[opening.end() + 1 : closing.start() if closing else None]
        for opening, closing in zip_longest(fences[::2], fences[1::2])
        if opening[1].lower() in _PYTHON
    ]
    blocks = blocks if fences else [given]
    defining = [block for block in blocks if entry_point and f"def {entry_point}" in block]
    program = (defining or blocks or [""])[-1]
    return program if program.strip() else None


def prepare(**_: object) -> None:
    """Raise SandboxError if programs cannot be run here.

    This is called before grader processes are forked, so that they inherit its cached results.
    """
    _runner().start()
    close_sandboxes()


def close_sandboxes() -> None:
    """Close the sandboxes that this process started, but not its parent's."""
    _runner().close()


_runner = functools.cache(Runner)
