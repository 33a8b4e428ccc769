"""Every error this package raises on purpose. The command line prints its message and no traceback.

    UserError    something the user gave cannot be used: a file, a setting, an option      exit code 2
    RunFailure   a run cannot go on: a dead engine, a full disk                            exit code 1

Any other exception is a bug of ours and keeps its traceback. A message is one sentence: the value, where it came from
and what to do. Errors that report several problems at once have one sentence per line.
"""

from dataclasses import dataclass


class UserError(ValueError):
    """Something the user gave cannot be used."""


class RunFailure(RuntimeError):
    """A run, or the program, cannot go on for a reason that is not the user's mistake."""


def printable(text: str, keep: str = "") -> str:
    """Return a text without what a terminal would obey: each such character becomes a space, except those in `keep`.

    These are control characters (escape sequences begin with one), marks of writing direction, line separators and
    surrogates, which no output stream can encode.
    """
    if text.isprintable():
        return text
    return "".join(mark if mark.isprintable() or mark in keep else " " for mark in text)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text that is not empty, or its type if it has none."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def not_utf8(name: object, error: UnicodeDecodeError) -> str:
    """Return the sentence for a file that is not UTF-8 text: the line, the byte and what to do."""
    if error.object[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return f"{name} is UTF-16 and not UTF-8 text: save it as UTF-8"
    line = error.object[: error.start].count(b"\n") + 1
    byte = error.object[error.start]
    return f"{name} is not UTF-8 text (byte 0x{byte:02x} in line {line}): save it as UTF-8"


# What a user gave ----------------------------------------------------------------------------------------------------


class UsageError(UserError):
    """A command-line option cannot be used as it was given."""


class ExtraError(UserError):
    """A package that an extra brings is not installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeProblem:
    """One thing that is wrong with a recipe."""

    statement: str
    """The field, the value and the choices."""
    origin: str = ""
    """The file or the `--set KEY=VALUE` that it came from."""
    suggestion: str = ""
    """A clause on what may have been meant."""

    def __str__(self) -> str:
        return f"{self.origin}{': ' if self.origin else ''}{self.statement}{self.suggestion}"


class RecipeError(UserError):
    """A recipe cannot be used. `details` are its problems as values, `problems` the same as sentences."""

    def __init__(self, *problems: RecipeProblem | str) -> None:
        self.details = tuple(
            RecipeProblem(statement=problem) if isinstance(problem, str) else problem for problem in problems
        )
        self.problems = tuple(map(str, self.details))
        super().__init__("\n".join(self.problems))


class ImportPathError(UserError):
    """There is no function at an import path, "package.module:function".

    Where the module has no such `name`, `choices` are the names it has.
    """

    def __init__(self, path: str, reason: str, *, name: str = "", choices: tuple[str, ...] = ()) -> None:
        super().__init__(f'"{path}" cannot be imported: {reason}')
        self.name = name
        self.choices = choices


class StudyError(UserError):
    """A study cannot be run as it is written."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class InputError(UserError):
    """A log cannot be read, or does not hold what was asked for."""

    def __init__(self, sentence: str) -> None:
        # Paths and cells may hold line breaks and what a terminal would obey.
        super().__init__(printable(sentence))


class NoCurveError(InputError):
    """No curve of the data can be fitted; `reason` says why the first one cannot."""

    def __init__(self, sentence: str, reason: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class RunFolderError(UserError):
    """A run folder is not what was asked for, or holds something unreadable."""


class TaskError(UserError):
    """A task cannot be used: its problems, its files or its grader's name."""


class PromptError(UserError):
    """A prompt cannot be formatted as asked."""


class GraderError(UserError):
    """A grader cannot be used."""


class SandboxError(GraderError):
    """Programs cannot be run in the sandbox that was asked for."""


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
    """A cluster cannot be used: it does not answer, has another version, or has too few GPUs."""


class SinkError(UserError):
    """A metrics sink (wandb, trackio, tensorboard) cannot be used."""


# What ends a run -----------------------------------------------------------------------------------------------------


class EngineError(RunFailure):
    """The engine cannot go on; every later poll raises it again."""


class NonFiniteLogits(EngineError):
    """The weights that an engine samples with give logits that are not finite; version 0 is the model as loaded."""

    def __init__(self, *, token: int, request: str, version: int) -> None:
        cause = (
            "training has diverged, so start again with a lower optimizer.lr, or check the loss if it is your own"
            if version
            else "the weights of the model itself are at fault (model.path)"
        )
        super().__init__(
            f"non-finite logits at token {token} of request {request}, sampled with version {version}: {cause}"
        )


class EngineStalled(EngineError):
    """Requests are with the engine, and it has produced nothing for too long."""


class LearnerError(RunFailure):
    """A rank of the learner has died or failed."""


class RankLost(LearnerError):
    """A rank of the learner has died or does not answer; other ranks then fail because of it."""


class GraderPoolError(RunFailure):
    """The grader pool itself has failed, not a grader on one item."""


class GradingStalled(RunFailure):
    """Answers are with the graders, and no verdict has come for too long."""


class StoreError(RunFailure):
    """A file of the run folder cannot be written."""


class BusyError(RunFailure):
    """Another process is working in the same folder."""


class WorkerDied(RunFailure):
    """A worker process ended before it had answered."""
