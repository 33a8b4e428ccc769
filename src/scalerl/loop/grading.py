"""Verdicts on completions: at once by a quick grader of ours, from a pool of child processes by any other.

    marking.submit(them, judge, "training")  ->  marking.poll("training")  ->  Marked(completion, correct, reason)

Training and evaluation share one pool, and each sees only what it submitted. Pooled verdicts arrive when they arrive,
so a run with such a grader is not the same to the last row when it is repeated; with a quick one it is.
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

_WAIT_S = 0.5  # how long a poll that waits waits at most; below the least that a call may take to be held hung
_SPARE_S = 50.0  # a pool ends every item soon after its timeout, so one that is silent for so long beyond it is dead


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """How the answers of one task are graded."""

    spec: GraderSpec
    decode_all: Callable[[Sequence[Sequence[int]]], Sequence[str]]
    opening: str = ""
    """What stands before each text: the tag that opens thinking, where the prompt ends with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    """A completion with its verdict, or with the reason why there is none."""

    completion: Completion
    correct: bool | None
    reason: Reason | None = None


def spec_of(task: Task) -> GraderSpec:
    """The task's grader, told where thinking ends."""
    return GraderSpec(name=task.grader, settings=dataclasses.asdict(task.answer))


def opened_thinking(prompt: str, task: Task) -> str:
    """The tag that opens thinking, where a prompt ends with it, as by a chat template; else nothing.

    Without it, thinking that never ends would be taken for an answer.
    """
    start, end = task.answer.thinking_start, task.answer.thinking_end
    return start if start.strip() and end and prompt.rstrip().endswith(start.rstrip()) else ""


def is_pooled(spec: GraderSpec) -> bool:
    """Whether it may hang, crash or eat memory: some of ours, and whatever is not ours."""
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
    """Of texts with their references, all at once and in their order."""
    spec = spec_of(task)
    if not is_pooled(spec):
        return [_at_once(spec, text, answer) for text, answer in answers]
    limits = limits or GradingSettings()
    spec = with_limits(spec, limits)
    with _pool(limits) as pool:
        items = [Item(key=None, spec=spec, text=text, answer=answer) for text, answer in answers]
        return [graded.correct for graded in pool.grade_all(items)]


def _pool(limits: GradingSettings) -> GraderPool:
    return GraderPool(**limits.model_dump(exclude={"sandbox"}))


def _at_once(spec: GraderSpec, text: str, answer: str) -> bool | None:
    return GRADERS[spec.name](text, answer, **spec.settings)


class Marking:
    """The one place where answers become verdicts. The pool starts with the first grader that needs it."""

    def __init__(self, limits: GradingSettings | None = None) -> None:
        self._limits = limits or GradingSettings()
        self._pool: GraderPool | None = None
        self._waiting: dict[tuple[Purpose, str], Completion] = {}
        self._last_verdict = time.monotonic()
        self._marked: defaultdict[Purpose, list[Marked]] = defaultdict(list)

    def check(self, judge: Judge) -> None:
        """GraderError where the judge's grader cannot be used; to be called before anything is asked."""
        if is_pooled(judge.spec):
            if judge.spec.name == "code" and self._limits.sandbox == "none":
                warnings.warn('grading.sandbox is "none": programs run with all rights of this user', stacklevel=2)
            self._started().check(with_limits(judge.spec, self._limits))

    def submit(self, completions: Sequence[Completion], judge: Judge, purpose: Purpose) -> None:
        texts = judge.decode_all([completion.tokens.tolist() for completion in completions])
        for completion, text in zip(completions, (judge.opening + text for text in texts), strict=True):
            answer = completion.request.problem.answer
            if is_pooled(judge.spec):
                key = (purpose, completion.request.key)
                self._last_verdict = self._last_verdict if self._waiting else time.monotonic()
                self._waiting[key] = completion
                self._started().submit(key, with_limits(judge.spec, self._limits), text, answer)
            else:
                correct = _at_once(judge.spec, text, answer)
                reason = "no_answer" if correct is None else None
                self._marked[purpose].append(Marked(completion=completion, correct=correct, reason=reason))

    def poll(self, purpose: Purpose, *, wait: bool = False) -> list[Marked]:
        """What was marked since the last call; with `wait`, a while is waited for at least one if any is due."""
        if self._pool is not None and self._waiting:
            due = not self._marked[purpose] and any(waiting == purpose for waiting, _ in self._waiting)
            self._take(self._pool.poll(_WAIT_S if wait and due else 0.0))
        marked, self._marked[purpose] = self._marked[purpose], []
        return marked

    def _take(self, graded: Sequence[Graded]) -> None:
        for one in graded:
            key = cast(tuple[Purpose, str], one.key)
            marked = Marked(completion=self._waiting.pop(key), correct=one.correct, reason=one.reason)
            self._marked[key[0]].append(marked)
        if graded:
            self._last_verdict = time.monotonic()
        elif time.monotonic() - self._last_verdict > (quiet_s := self._limits.timeout_s + _SPARE_S):
            raise GradingStalled(
                f"{len(self._waiting)} answers are with the graders, and none came back in {quiet_s:g} s"
            )

    @property
    def first_errors(self) -> dict[str, str]:
        """The first exception of each grader that raised on an item: its author wants to know."""
        return {} if self._pool is None else dict(self._pool.first_errors)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()

    def _started(self) -> GraderPool:
        if self._pool is None:
            self._pool = _pool(self._limits)
        return self._pool


class GroupGrading:
    """Whole groups in, graded groups out: `correct` is what is reported, `reward` what is trained on."""

    def __init__(
        self, marking: Marking, judge_of: Callable[[Problem], Judge], *, reward: RewardSettings, length: LengthControl
    ) -> None:
        self._marking, self._judge_of, self._reward, self._length = marking, judge_of, reward, length
        self._groups: dict[str, Sequence[Completion]] = {}
        self._marks: dict[str, dict[int, Marked]] = {}
        self.num_without_verdict: Counter[Reason] = Counter()
        """Completions of graded groups that are neither right nor wrong, by reason."""

    def submit(self, completions: Sequence[Completion]) -> None:
        request = completions[0].request
        self._groups[request.group], self._marks[request.group] = completions, {}
        self._marking.submit(completions, self._judge_of(request.problem), "training")

    def poll(self, *, wait: bool = False) -> list[Group]:
        """The groups whose last verdict has come, in the order of their last verdicts."""
        whole = []
        for marked in self._marking.poll("training", wait=wait):
            request = marked.completion.request
            marks = self._marks[request.group]
            marks[request.index] = marked
            if len(marks) == len(self._groups[request.group]):
                whole.append(self._group(request.group))
        return whole

    def _group(self, key: str) -> Group:
        completions, marks = self._groups.pop(key), self._marks.pop(key)
        self.num_without_verdict.update(marked.reason for marked in marks.values() if marked.reason is not None)
        correct = tuple(marks[completion.request.index].correct for completion in completions)
        return Group(
            key=key,
            problem=completions[0].request.problem,
            completions=tuple(completions),
            correct=correct,
            rewards=tuple(map(self._value, completions, correct)),
        )

    def _value(self, completion: Completion, correct: bool | None) -> float:
        value = self._reward.correct if correct else self._reward.wrong
        return value + self._length.adjust(len(completion), correct is True)
