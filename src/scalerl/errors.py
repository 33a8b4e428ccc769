"""All errors that this package raises on purpose. The command line prints their messages without a traceback.

    UserError    an input of the user is invalid: a file, a setting, an option      exit code 2
    RunFailure   a run cannot continue: a dead engine, a full disk                  exit code 1

Any other exception is a bug of ours and keeps its traceback. A message is one sentence with the value, its origin and
what to do. Errors that report several problems have one sentence per line.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., object])


class UserError(ValueError):
    """An input of the user is invalid."""


class RunFailure(RuntimeError):
    """A run, or the program, cannot continue for a reason that is not a mistake of the user."""


def printable(text: str, keep: str = "") -> str:
    """Return a text in which characters that control a terminal become spaces, except those in `keep`.

    These are control characters (with which escape sequences begin), marks of writing direction, line separators and
    surrogates, which no output stream can encode.
    """
    if text.isprintable():
        return text
    return "".join(mark if mark.isprintable() or mark in keep else " " for mark in text)


def first_line(error: BaseException) -> str:
    """Return the first non-empty line of an error's message, or its type if the message is empty."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def failure_text(error: BaseException) -> str:
    """Return why something failed: the sentence of an error of this package, or the type and message of any other."""
    is_ours = isinstance(error, UserError | RunFailure)
    return str(error) if is_ours else f"{type(error).__name__}: {error}".removesuffix(": ")


def not_utf8(name: object, error: UnicodeDecodeError) -> str:
    """Return a sentence about a file that is not UTF-8 text: the line, the byte and what to do."""
    if error.object[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return f"{name} is UTF-16 and not UTF-8 text: save it as UTF-8"
    line = error.object[: error.start].count(b"\n") + 1
    byte = error.object[error.start]
    return f"{name} is not UTF-8 text (byte 0x{byte:02x} in line {line}): save it as UTF-8"


# Options in sentences ------------------------------------------------------------------------------------------------

_are_arguments: ContextVar[bool] = ContextVar("_are_arguments", default=False)
_AS_ARGUMENTS = {"alone": "alone=True", "run-spread": "run_sd=", "explain": ".explain()", "plot": ".plot()"}
"""Options that Python names otherwise than the command line does."""


class OptionName:
    """The name of an option in a sentence: f"{option:x COLUMN}" is "--x COLUMN", or "x=COLUMN" in Python.

    Words in capitals stand for a value; other words are values, which Python quotes, unlike numbers.
    """

    def __format__(self, name_and_value: str) -> str:
        name, _, value = name_and_value.partition(" ")
        if not _are_arguments.get():
            return f"--{name_and_value}"
        stands_for_one = value.isupper() and not value[0].isdigit()
        given = value if not value or stands_for_one or _is_number(value) else f'"{value}"'
        return _AS_ARGUMENTS.get(name_and_value) or f"{name.replace('-', '_')}={given}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


option = OptionName()


@contextmanager
def options_as_arguments() -> Iterator[None]:
    """Name options in sentences as Python does, and not as the command line does."""
    before = _are_arguments.set(True)
    try:
        yield
    finally:
        _are_arguments.reset(before)


def unknown_argument(name: str, function: str, known: Sequence[str]) -> str:
    """Return a sentence on an argument that a function does not have, with the likely one."""
    close = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f": did you mean {close[0]}? It" if close else "; it"
    return f"{function} has no argument {name!r}{hint} takes {', '.join(known)}."


def python_call(function: Function) -> Function:
    """Make a public function name options as Python does, and say in a sentence what is wrong with its arguments."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        called, signature = f"{function.__name__}()", inspect.signature(function)
        takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in signature.parameters.values())
        known = [name for name in signature.parameters if name not in ("self", "options")]
        with options_as_arguments():
            for name in kwargs:
                if name not in known and not takes_any:
                    raise InputError(unknown_argument(name, called, known))
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise InputError(f"{called}: {error}; it takes {', '.join(known)}.") from None
            return function(*args, **kwargs)

    return cast(Function, call)


# Invalid input -------------------------------------------------------------------------------------------------------


class UsageError(UserError):
    """A command-line option is invalid."""


class ExtraError(UserError):
    """A package of an extra is not installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeProblem:
    """One problem of a recipe."""

    statement: str
    """The field, the value and the choices."""
    origin: str = ""
    """The file or the `--set KEY=VALUE` of the setting."""
    suggestion: str = ""
    """A clause with what the user may have meant."""

    def __str__(self) -> str:
        return f"{self.origin}{': ' if self.origin else ''}{self.statement}{self.suggestion}"


class RecipeError(UserError):
    """A recipe is invalid. `details` has its problems as values, `problems` the same as sentences."""

    def __init__(self, *problems: RecipeProblem | str) -> None:
        self.details = tuple(
            RecipeProblem(statement=problem) if isinstance(problem, str) else problem for problem in problems
        )
        self.problems = tuple(map(str, self.details))
        super().__init__("\n".join(self.problems))


class ImportPathError(UserError):
    """There is no function at an import path, "package.module:function".

    If the module has no such `name`, `choices` are the names that it has.
    """

    def __init__(self, path: str, reason: str, *, name: str = "", choices: tuple[str, ...] = ()) -> None:
        super().__init__(f'"{path}" cannot be imported: {reason}')
        self.name = name
        self.choices = choices


class StudyError(UserError):
    """A study is invalid."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class InputError(UserError):
    """A log cannot be read, or does not contain what was requested."""

    def __init__(self, sentence: str) -> None:
        # Paths and cells may contain line breaks and characters that control a terminal.
        super().__init__(printable(sentence))


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A column that may be what was asked for."""

    name: str
    first: float
    """Its first value."""
    last: float
    may_be: str
    """What it may be: an evaluation, a rate, a training reward, or a number."""
    options: tuple[tuple[str, str], ...]
    """The options that choose it, as (name, value)."""


class UnclearLogError(InputError):
    """A log has several columns that may be the reward, or none whose name says that it is one.

    `candidates` are those columns; the first one is the best guess.
    """

    def __init__(self, sentence: str, candidates: tuple[Candidate, ...]) -> None:
        super().__init__(sentence)
        self.candidates = candidates


class NoCurveError(InputError):
    """No curve of the data can be fitted; `reason` is that of the first curve."""

    def __init__(self, sentence: str, reason: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class RunFolderError(UserError):
    """A run folder does not contain what was requested, or is unreadable."""


class TaskError(UserError):
    """A task is invalid: its problems, its files or its grader's name."""


class PromptError(UserError):
    """A prompt cannot be formatted."""


class GraderError(UserError):
    """A grader is unusable."""


class SandboxError(GraderError):
    """Programs cannot be run in the sandbox."""


class ModelError(UserError):
    """A model cannot be loaded or used."""


class GgufError(ModelError):
    """A GGUF file cannot be read."""


class LoraError(ModelError):
    """Adapters cannot be put on this model."""


class PackingError(ModelError):
    """This model's attention cannot run on packed sequences."""


class CheckpointError(UserError):
    """A checkpoint is damaged or does not belong to this run."""


class ClusterError(UserError):
    """A cluster is unusable: it does not answer, has another version, or has too few GPUs."""


class SinkError(UserError):
    """A metrics sink (wandb, trackio, tensorboard) is unusable."""


# Failures of a run ---------------------------------------------------------------------------------------------------


class EngineError(RunFailure):
    """The engine cannot continue; every later poll raises this error again."""


class NonFiniteLogits(EngineError):
    """The weights of an engine give non-finite logits; version 0 is the loaded model."""

    def __init__(self, *, token: int, request: str, version: int) -> None:
        cause = (
            "training has diverged: start again with a lower optimizer.lr, or check the loss if it is your own"
            if version
            else "the weights of the model itself are at fault (model.path)"
        )
        super().__init__(
            f"non-finite logits at token {token} of request {request}, sampled with version {version}: {cause}"
        )


class EngineStalled(EngineError):
    """The engine has pending requests but has sampled nothing for too long."""


class LearnerError(RunFailure):
    """A rank of the learner has died or failed."""


class RankLost(LearnerError):
    """A rank of the learner has died or does not answer; other ranks then fail because of it."""


class GraderPoolError(RunFailure):
    """The grader pool itself has failed, not a grader on one item."""


class GradingStalled(RunFailure):
    """The graders have pending answers but have returned no verdict for too long."""


class StoreError(RunFailure):
    """A file of the run folder cannot be written."""


class BusyError(RunFailure):
    """Another process uses the same folder."""


class WorkerDied(RunFailure):
    """A worker process ended before it answered."""
