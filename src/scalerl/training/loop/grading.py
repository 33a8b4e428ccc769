"""Verdicts on completions: fast graders run in this process, all others in child processes.

    graders.submit(them, judge, "training")  ->  graders.poll("training")  ->  Verdict(subject, value, correct, ...)

A grader's value is a number from 0 to 1; several graders are averaged by weight. A completion is correct if the value
reaches the judge's threshold. Training and evaluation share the child processes, and each gets only its own
verdicts. Verdicts from child processes arrive in no fixed order, so a run with such a grader cannot be
repeated to the last digit; with a fast one it can.
"""

import dataclasses
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from scalerl.errors import GraderError, GradingStalled
from scalerl.recipe.import_path import is_local, one_line
from scalerl.recipe.parts import GradingSettings, RewardSettings
from scalerl.recipe.secrets import from_environment, redact, secrets_in
from scalerl.training.graders.pool import Graded, GraderPool, GraderSpec
from scalerl.training.graders.rules import GRADERS, POOLED, RUN_PROGRAMS
from scalerl.training.graders.supervisor import Reason
from scalerl.training.graders.values import Score, read_score
from scalerl.training.tasks.length import LengthControl
from scalerl.training.tasks.task import Task
from scalerl.training.types import Completion, Episode, Group, Problem, Purpose

_WAIT_S = 0.5  # longest wait of one poll, far below the watchdog's limit for a call
_SPARE_S = 50.0  # a pool ends every item soon after its timeout; if it is silent for this much longer, it is dead


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedGrader:
    """One of the graders of a task."""

    column: str
    """Its name in rows: score/NAME."""
    spec: GraderSpec
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """How the answers of one task are graded."""

    graders: tuple[WeightedGrader, ...]
    """At least one, and at least one with a weight above 0."""
    decode_all: Callable[[Sequence[Sequence[int]]], Sequence[str]]
    opening: str = ""
    """Text put before each completion: the tag that opens thinking, where the prompt ends with it."""
    threshold: float = 1.0
    """Smallest value of a correct completion."""

    @property
    def name(self) -> str:
        """The graders' names, for messages."""
        return ", ".join(grader.spec.name for grader in self.graders)

    def value_of(self, scores: Mapping[str, float]) -> float:
        """Return the weighted mean of the graders' values."""
        total = sum(grader.weight * scores[grader.column] for grader in self.graders)
        # Both sums use the same order, so the quotient is exactly 1 if every value is 1.
        return total / sum(grader.weight for grader in self.graders)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict on a completion, or the reason why there is none."""

    subject: Any
    """The completion, or the `subject` passed to `submit_text`."""
    correct: bool | None
    """Whether the value reaches the threshold; None without a verdict."""
    value: float | None = None
    """From 0 to 1; None without a verdict."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """The values of several graders, by column; empty with a single grader or without a verdict."""
    reason: Reason | None = None
    source: Literal["grader", "environment"] = "grader"
    """Who is the reason."""
    outcome: str = ""
    """The outcome named by the first grader that names one, such as "timeout" for a program."""

    @property
    def column(self) -> str:
        """The column in which a missing verdict is counted: "grader/timeout", "environment/error"."""
        return f"{self.source}/{self.reason}"


def graders_of(task: Task) -> tuple[WeightedGrader, ...]:
    """Return the task's graders, with the tags around thinking as settings, and variables in place of "env:NAME"."""
    tags = dataclasses.asdict(task.answer)
    if not task.graders:
        return (WeightedGrader(column=task.grader, spec=GraderSpec(name=task.grader, settings=tags)),)
    graders = []
    for column, used in task.graders.items():
        own = from_environment(used.model_extra or {}, f'the grader "{used.name}"')
        spec = GraderSpec(name=used.name, settings=tags | own)
        graders.append(WeightedGrader(column=column, spec=spec, weight=used.weight))
    return tuple(graders)


def opened_thinking(prompt: str, task: Task) -> str:
    """Return the tag that opens thinking if the prompt ends with it, as chat templates may; otherwise "".

    Otherwise thinking that never ends would count as an answer.
    """
    start = task.answer.thinking_start
    end = task.answer.thinking_end
    if start.strip() and end and prompt.rstrip().endswith(start.rstrip()):
        return start
    return ""


def is_pooled(spec: GraderSpec) -> bool:
    """Return whether a grader needs a child process because it may hang, crash or use much memory.

    A function that exists only in this process cannot run in another one.
    """
    return (":" in spec.name and not is_local(spec.name)) or spec.name in POOLED


def with_limits(spec: GraderSpec, limits: GradingSettings) -> GraderSpec:
    """Return the spec with the recipe's limits, if the grader runs programs and enforces limits itself.

    A program must reach its own time limit, which is a verdict, before the worker that grades it reaches the pool's.
    """
    if spec.name not in RUN_PROGRAMS:
        return spec
    bounds = {"timeout_s": 0.75 * limits.timeout_s, "cpu_limit_s": limits.cpu_limit_s}
    return dataclasses.replace(spec, settings={**spec.settings, **bounds, "memory_limit_mb": limits.memory_limit_mb})


@dataclass(slots=True, kw_only=True)
class _Waiting:
    """A text whose graders have not all answered."""

    subject: Any
    purpose: Purpose
    judge: Judge
    episode: Episode | None = None
    """The conversation that the answer belongs to, if any."""
    scores: dict[str, Score] = field(default_factory=dict)
    reason: Reason | None = None

    def take(self, column: str, score: Score, reason: Reason | None) -> Verdict | None:
        """Add the value of one grader; return the verdict after the last one."""
        self.scores[column] = score
        self.reason = self.reason or reason
        if len(self.scores) < len(self.judge.graders):
            return None
        outcomes = (self.scores[grader.column].outcome for grader in self.judge.graders)
        outcome = next(filter(None, outcomes), "")
        scores = {name: score.value for name, score in self.scores.items() if score.value is not None}
        if len(scores) < len(self.scores):
            return Verdict(subject=self.subject, correct=None, reason=self.reason, outcome=outcome)
        value = self.judge.value_of(scores)
        if self.episode is not None:
            value = min(max(self.episode.base + self.episode.weight * value, 0.0), 1.0)
        return Verdict(
            subject=self.subject,
            correct=value >= self.judge.threshold,
            value=value,
            scores=scores if len(scores) > 1 else {},
            outcome=outcome,
        )


class GraderRunner:
    """Turns completions into verdicts. Starts child processes with the first grader that needs them."""

    def __init__(self, limits: GradingSettings | None = None) -> None:
        self._limits = limits or GradingSettings()
        self._pool: GraderPool | None = None
        self._waiting: dict[int, _Waiting] = {}
        self._num_submitted = 0
        self._local: dict[str, Callable[[str, str], object]] = {}
        self._local_errors: dict[str, str] = {}
        self._secrets: set[str] = set()
        """Values of settings that look like keys; no message repeats them."""
        self._last_verdict = time.monotonic()
        self._ready: defaultdict[Purpose, list[Verdict]] = defaultdict(list)

    def check(self, judge: Judge) -> None:
        """Raise GraderError if one of the judge's graders cannot be used. Call this before anything is sampled."""
        for spec in (with_limits(grader.spec, self._limits) for grader in judge.graders):
            self._secrets.update(value for _, value in secrets_in(spec.settings))
            if is_local(spec.name):
                self._local_grader(spec)
            elif is_pooled(spec):
                self._started().check(spec)

    def submit(self, completions: Sequence[Completion], judge: Judge, purpose: Purpose) -> None:
        """Grade these completions; `poll` returns the verdicts."""
        alone = [completion for completion in completions if completion.episode is None]
        texts = iter(judge.decode_all([completion.tokens.tolist() for completion in alone]))
        for completion in completions:
            episode = completion.episode
            text = next(texts) if episode is None else episode.answer
            if text is not None:
                answer = completion.request.problem.answer
                self.submit_text(completion, judge.opening + text, answer, judge, purpose, episode)
            elif episode is not None:
                correct = None if episode.value is None else episode.value >= judge.threshold
                verdict = Verdict(
                    subject=completion,
                    correct=correct,
                    value=episode.value,
                    reason=cast(Reason | None, episode.reason),
                    source="environment",
                )
                self._ready[purpose].append(verdict)

    def submit_text(
        self, subject: Any, text: str, answer: str, judge: Judge, purpose: Purpose, episode: Episode | None = None
    ) -> None:
        """Grade one text; with an `episode`, add its rewards to the graders' value of its answer."""
        waiting = _Waiting(subject=subject, purpose=purpose, judge=judge, episode=episode)
        pooled = []
        for grader in judge.graders:
            if is_pooled(grader.spec):
                pooled.append(grader)
                continue
            score, reason = self._grade_here(grader.spec, text, answer)
            verdict = waiting.take(grader.column, score, reason)
            if verdict is not None:
                self._ready[purpose].append(verdict)
        if not pooled:
            return
        if not self._waiting:
            self._last_verdict = time.monotonic()
        self._num_submitted += 1
        number = self._num_submitted
        self._waiting[number] = waiting
        for grader in pooled:
            spec = with_limits(grader.spec, self._limits)
            self._started().submit((number, grader.column), spec, text, answer)

    def _grade_here(self, spec: GraderSpec, text: str, answer: str) -> tuple[Score, Reason | None]:
        """Grade in this process; return the value, or the reason why there is none."""
        try:
            if is_local(spec.name):
                score = read_score(self._local_grader(spec)(text, answer))
            else:
                score = read_score(GRADERS[spec.name](text, answer, **spec.settings))
        except Exception as error:
            if not is_local(spec.name):
                raise
            # An exception in a user's grader costs one verdict, as in a child process.
            self._local_errors.setdefault(spec.name, one_line(error))
            return Score(value=None), "error"
        reason = "no_answer" if score.value is None else None
        return score, reason

    def _local_grader(self, spec: GraderSpec) -> Callable[[str, str], object]:
        """Return a grader that is an object of this process, with its settings bound."""
        from scalerl.training.graders.workers import load

        if spec.name not in self._local:
            self._local[spec.name] = grade = load(spec.name, spec.settings)
            if grade.is_async:
                raise GraderError(
                    f'"{spec.name}" is a coroutine function that cannot be imported: put it into a module, so that the '
                    f"process for such graders can import it"
                )
        return self._local[spec.name]

    def poll(self, purpose: Purpose, *, wait: bool = False) -> list[Verdict]:
        """Return the verdicts since the last call; with `wait`, wait a moment for at least one if any is pending."""
        if self._pool is not None and self._waiting:
            due = not self._ready[purpose] and any(each.purpose == purpose for each in self._waiting.values())
            wait_s = _WAIT_S if wait and due else 0.0
            self._receive(self._pool.poll(wait_s))
        ready = self._ready[purpose]
        self._ready[purpose] = []
        return ready

    def _receive(self, results: Sequence[Graded]) -> None:
        for result in results:
            number, column = cast(tuple[int, str], result.key)
            waiting = self._waiting[number]
            verdict = waiting.take(column, result, result.reason)
            if verdict is not None:
                del self._waiting[number]
                self._ready[waiting.purpose].append(verdict)
        if results:
            self._last_verdict = time.monotonic()
            return
        quiet_s = self._limits.timeout_s + _SPARE_S
        if time.monotonic() - self._last_verdict > quiet_s:
            raise GradingStalled(
                f"{len(self._waiting)} answers are with the graders, and none came back in {quiet_s:g} s"
            )

    @property
    def first_errors(self) -> dict[str, str]:
        """The first exception of each grader that raised one, for its author."""
        of_pool = self._pool.first_errors if self._pool is not None else {}
        return {name: redact(error, self._secrets) for name, error in (self._local_errors | of_pool).items()}

    def close(self) -> None:
        """End the child processes."""
        if self._pool is not None:
            self._pool.close()

    @property
    def pids(self) -> tuple[int, ...]:
        """The graders' processes; empty until a grader needs one."""
        return () if self._pool is None else self._pool.pids

    def _started(self) -> GraderPool:
        if self._pool is None:
            self._pool = GraderPool(**self._limits.model_dump())
        return self._pool


@dataclass
class GroupGrading:
    """Takes complete groups and returns them graded: `correct` is what is reported, `reward` what is trained on."""

    graders: GraderRunner
    judge_of: Callable[[Problem], Judge]
    reward: RewardSettings
    length: LengthControl

    def __post_init__(self) -> None:
        self._verdicts: dict[str, list[Verdict | None]] = {}
        """By group, in the order of the requests; None until it arrives."""
        self.num_without_verdict: Counter[str] = Counter()
        """Number of completions of graded groups without a verdict, by column; the reader resets it."""
        self.num_outcomes: Counter[str] = Counter()
        """Number of completions of graded groups by the outcome that their grader named."""
        self.num_answers = self.num_rewarded = 0
        """Number of completions of graded groups, and of those with a value above 0."""

    def submit(self, groups: Sequence[Sequence[Completion]]) -> None:
        """Grade all completions of these groups."""
        together: dict[int, tuple[Judge, list[Completion]]] = {}
        for completions in groups:
            request = completions[0].request
            self._verdicts[request.group] = [None] * len(completions)
            judge = self.judge_of(request.problem)
            together.setdefault(id(judge), (judge, []))[1].extend(completions)
        for judge, completions in together.values():
            self.graders.submit(completions, judge, "training")

    def poll(self, *, wait: bool = False) -> list[Group]:
        """Return the groups whose last verdict has arrived, in the order of their last verdicts."""
        graded = []
        for verdict in self.graders.poll("training", wait=wait):
            request = verdict.subject.request
            verdicts = self._verdicts[request.group]
            verdicts[request.index] = verdict
            arrived = [each for each in verdicts if each is not None]
            if len(arrived) == len(verdicts):
                del self._verdicts[request.group]
                graded.append(self._group_of(arrived))
        return graded

    def _group_of(self, verdicts: Sequence[Verdict]) -> Group:
        self.num_without_verdict.update(verdict.column for verdict in verdicts if verdict.reason is not None)
        self.num_answers += len(verdicts)
        self.num_rewarded += sum(bool(verdict.value) for verdict in verdicts)
        self.num_outcomes.update(verdict.outcome for verdict in verdicts if verdict.outcome)
        completions = tuple(verdict.subject for verdict in verdicts)
        scores = {}
        for name in score_columns(verdicts):
            scores[name] = tuple(verdict.scores.get(name) for verdict in verdicts)
        return Group(
            key=completions[0].request.group,
            problem=completions[0].request.problem,
            completions=completions,
            correct=tuple(verdict.correct for verdict in verdicts),
            values=tuple(verdict.value for verdict in verdicts),
            scores=scores,
            rewards=tuple(map(self._reward_of, verdicts)),
        )

    def _reward_of(self, verdict: Verdict) -> float:
        reward = reward_of(verdict.value or 0.0, self.reward)
        return reward + self.length.adjust(verdict.subject.num_written, verdict.correct is True)


def score_columns(verdicts: Iterable[Verdict]) -> Iterable[str]:
    """Return the columns of several graders' values, each once, in order."""
    return dict.fromkeys(itertools.chain.from_iterable(verdict.scores for verdict in verdicts))


def reward_of(value: float, settings: RewardSettings) -> float:
    """Return the reward of a value: linear from reward.wrong at 0 to reward.correct at 1, exactly these at the ends."""
    return (1.0 - value) * settings.wrong + value * settings.correct
