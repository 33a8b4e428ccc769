"""Verdicts on completions: fast graders run in this process, all others in a pool of child processes.

    graders.submit(them, judge, "training")  ->  graders.poll("training")  ->  Verdict(completion, correct, reason)

Training and evaluation share one pool, and each gets only the verdicts on what it submitted. Verdicts from the pool
arrive in no fixed order, so a run with such a grader cannot be repeated to the last digit; with a fast one it can.
"""

import dataclasses
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from scalerl.config.parts import GradingSettings, RewardSettings
from scalerl.errors import GradingStalled
from scalerl.graders.pool.pool import Graded, GraderPool, GraderSpec, Item, Reason
from scalerl.graders.rules import GRADERS, POOLED
from scalerl.tasks.length import LengthControl
from scalerl.tasks.task import Task
from scalerl.types import Completion, Group, Problem

Purpose = Literal["training", "evaluation"]

_WAIT_S = 0.5  # longest wait of one poll; far below the time after which the watchdog takes a call for hung
_SPARE_S = 50.0  # a pool ends every item soon after its timeout; one that is silent for this much longer is dead


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """How the answers of one task are graded."""

    spec: GraderSpec
    decode_all: Callable[[Sequence[Sequence[int]]], Sequence[str]]
    opening: str = ""
    """Text put before each completion: the tag that opens thinking, where the prompt ends with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a completion is correct, or the reason why that is not known."""

    completion: Completion
    correct: bool | None
    reason: Reason | None = None


def spec_of(task: Task) -> GraderSpec:
    """Return the task's grader, with the tags around thinking as settings."""
    return GraderSpec(name=task.grader, settings=dataclasses.asdict(task.answer))


def opened_thinking(prompt: str, task: Task) -> str:
    """Return the tag that opens thinking if the prompt ends with it, as chat templates may; otherwise "".

    Without it, thinking that never ends would be taken for an answer.
    """
    start, end = task.answer.thinking_start, task.answer.thinking_end
    return start if start.strip() and end and prompt.rstrip().endswith(start.rstrip()) else ""


def is_pooled(spec: GraderSpec) -> bool:
    """Return whether a grader needs a child process because it may hang, crash or use much memory."""
    return ":" in spec.name or spec.name in POOLED


def with_limits(spec: GraderSpec, limits: GradingSettings) -> GraderSpec:
    """Return the spec with the recipe's limits, where the grader runs programs and enforces them itself.

    A program must reach its own time limit, which is a verdict, before the worker that grades it reaches the pool's.
    """
    if spec.name != "code":
        return spec
    bounds = {"timeout_s": 0.75 * limits.timeout_s, "cpu_limit_s": limits.cpu_limit_s}
    bounds |= {"memory_limit_mb": limits.memory_limit_mb, "sandbox": limits.sandbox}
    return dataclasses.replace(spec, settings={**spec.settings, **bounds})


def verdicts(
    task: Task, answers: Sequence[tuple[str, str]], limits: GradingSettings | None = None
) -> list[bool | None]:
    """Grade texts with their references, all at once; return the verdicts in the same order."""
    spec = spec_of(task)
    if not is_pooled(spec):
        return [_grade_here(spec, text, answer) for text, answer in answers]
    limits = limits or GradingSettings()
    spec = with_limits(spec, limits)
    with _pool(limits) as pool:
        items = [Item(key=None, spec=spec, text=text, answer=answer) for text, answer in answers]
        return [graded.correct for graded in pool.grade_all(items)]


def _pool(limits: GradingSettings) -> GraderPool:
    return GraderPool(**limits.model_dump(exclude={"sandbox"}))


def _grade_here(spec: GraderSpec, text: str, answer: str) -> bool | None:
    return GRADERS[spec.name](text, answer, **spec.settings)


class GraderRunner:
    """Turns completions into verdicts. Starts the pool of child processes with the first grader that needs it."""

    def __init__(self, limits: GradingSettings | None = None) -> None:
        self._limits = limits or GradingSettings()
        self._pool: GraderPool | None = None
        self._waiting: dict[tuple[Purpose, str], Completion] = {}
        self._last_verdict = time.monotonic()
        self._ready: defaultdict[Purpose, list[Verdict]] = defaultdict(list)

    def check(self, judge: Judge) -> None:
        """Raise GraderError if the judge's grader cannot be used; to be called before anything is sampled."""
        if is_pooled(judge.spec):
            if judge.spec.name == "code" and self._limits.sandbox == "none":
                warnings.warn('grading.sandbox is "none": programs run with all rights of this user', stacklevel=2)
            self._started_pool().check(with_limits(judge.spec, self._limits))

    def submit(self, completions: Sequence[Completion], judge: Judge, purpose: Purpose) -> None:
        """Grade these completions; `poll` returns the verdicts."""
        texts = judge.decode_all([completion.tokens.tolist() for completion in completions])
        for completion, text in zip(completions, (judge.opening + text for text in texts), strict=True):
            answer = completion.request.problem.answer
            if is_pooled(judge.spec):
                key = (purpose, completion.request.key)
                self._last_verdict = self._last_verdict if self._waiting else time.monotonic()
                self._waiting[key] = completion
                self._started_pool().submit(key, with_limits(judge.spec, self._limits), text, answer)
            else:
                correct = _grade_here(judge.spec, text, answer)
                reason = "no_answer" if correct is None else None
                self._ready[purpose].append(Verdict(completion=completion, correct=correct, reason=reason))

    def poll(self, purpose: Purpose, *, wait: bool = False) -> list[Verdict]:
        """Return the verdicts since the last call; with `wait`, wait a moment for at least one if any is pending."""
        if self._pool is not None and self._waiting:
            due = not self._ready[purpose] and any(waiting == purpose for waiting, _ in self._waiting)
            self._take(self._pool.poll(_WAIT_S if wait and due else 0.0))
        ready, self._ready[purpose] = self._ready[purpose], []
        return ready

    def _take(self, results: Sequence[Graded]) -> None:
        for result in results:
            key = cast(tuple[Purpose, str], result.key)
            verdict = Verdict(completion=self._waiting.pop(key), correct=result.correct, reason=result.reason)
            self._ready[key[0]].append(verdict)
        if results:
            self._last_verdict = time.monotonic()
        elif time.monotonic() - self._last_verdict > (quiet_s := self._limits.timeout_s + _SPARE_S):
            raise GradingStalled(
                f"{len(self._waiting)} answers are with the graders, and none came back in {quiet_s:g} s"
            )

    @property
    def first_errors(self) -> dict[str, str]:
        """The first exception of each grader that raised one, for its author."""
        return {} if self._pool is None else dict(self._pool.first_errors)

    def close(self) -> None:
        """End the child processes."""
        if self._pool is not None:
            self._pool.close()

    def _started_pool(self) -> GraderPool:
        if self._pool is None:
            self._pool = _pool(self._limits)
        return self._pool


class GroupGrading:
    """Takes complete groups and returns them graded: `correct` is what is reported, `reward` what is trained on."""

    def __init__(
        self,
        graders: GraderRunner,
        judge_of: Callable[[Problem], Judge],
        *,
        reward: RewardSettings,
        length: LengthControl,
    ) -> None:
        self._graders = graders
        self._judge_of = judge_of
        self._reward = reward
        self._length = length
        self._groups: dict[str, Sequence[Completion]] = {}
        self._verdicts: dict[str, dict[int, Verdict]] = {}
        self.num_without_verdict: Counter[Reason] = Counter()
        """Completions of graded groups that are neither right nor wrong, by reason."""

    def submit(self, completions: Sequence[Completion]) -> None:
        """Grade all completions of one group."""
        request = completions[0].request
        self._groups[request.group] = completions
        self._verdicts[request.group] = {}
        self._graders.submit(completions, self._judge_of(request.problem), "training")

    def poll(self, *, wait: bool = False) -> list[Group]:
        """Return the groups whose last verdict has arrived, in the order of their last verdicts."""
        graded = []
        for verdict in self._graders.poll("training", wait=wait):
            request = verdict.completion.request
            verdicts = self._verdicts[request.group]
            verdicts[request.index] = verdict
            if len(verdicts) == len(self._groups[request.group]):
                graded.append(self._graded_group(request.group))
        return graded

    def _graded_group(self, key: str) -> Group:
        completions = self._groups.pop(key)
        verdicts = self._verdicts.pop(key)
        self.num_without_verdict.update(v.reason for v in verdicts.values() if v.reason is not None)
        correct = tuple(verdicts[completion.request.index].correct for completion in completions)
        return Group(
            key=key,
            problem=completions[0].request.problem,
            completions=tuple(completions),
            correct=correct,
            rewards=tuple(map(self._reward_of, completions, correct)),
        )

    def _reward_of(self, completion: Completion, correct: bool | None) -> float:
        value = self._reward.correct if correct else self._reward.wrong
        return value + self._length.adjust(len(completion), correct is True)
