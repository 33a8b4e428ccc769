"""The one loop of training; PipelineRL-k, PPO-off-policy-k and synchronous are settings of it (see lag.py).

               prompts                     whole groups                 a batch            weights, version v+1
    curriculum -------> engine.submit ... engine.poll -> grade -> lag rule -> learner.step -------> engine.push_weights
        ^                                                  |
        +------------------- pass rates -------------------+       (at grading, before any filter)

The loop repeatedly does the first of these that it can. What each one waits for, and what unblocks it:

    submit   room under the lag rule              a step or a push
             a problem from the curriculum        a grade: a problem waits for the verdict on its last group
    step     B finished groups (waits_for =       a completion; never a submission, since all in flight may finish
             "groups": and the rest in time;
             drain: none in flight)
    push     push_every steps                     a step
    poll     a completion, or some tokens         the engine; one that is dead or hung raises (watchdog.py)
             or a verdict                         the grader; a slow verdict delays only its own group
    the end  the curriculum is exhausted and      a step: what is left at the end is trained as one smaller batch,
             nothing is untrained                 so that every problem of an epoch is trained exactly once

The caller iterates over `Pipeline.steps()` and stops when its budget is spent. Nothing runs between two steps: there it
evaluates, logs, and takes `Pipeline.state()` for a checkpoint. Uses no torch and no recipe.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from scalerl.training.loop.lag import LagRule
from scalerl.training.loop.refill import Refill
from scalerl.training.loop.seams import Engine, Grading, Learner
from scalerl.training.tasks.curriculum import Curriculum, Issued
from scalerl.training.types import Batch, Completion, Group, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """How the seconds since the previous step were spent, without the caller's time between steps."""

    submit_s: float
    """Seconds for choosing problems and making their requests."""
    poll_s: float
    """Seconds for generating (an engine in this process) or waiting (an engine elsewhere)."""
    grade_s: float
    step_s: float
    push_s: float

    @property
    def wait_s(self) -> float:
        """Seconds for which the learner had no batch."""
        return self.submit_s + self.poll_s + self.grade_s

    @property
    def total_s(self) -> float:
        return self.wait_s + self.step_s + self.push_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """One step, with its push if one was due."""

    version: int
    """The version after the step: the number of steps taken."""
    batch: Batch
    """The groups it took, before any filter."""
    metrics: Mapping[str, float]
    timings: Timings
    refill: Mapping[str, float] = field(default_factory=dict)
    """Columns on groups that were replaced before the step; empty without a refill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineState:
    """The state of the loop between two steps, for a resumed run."""

    meta: Mapping[str, Any]
    """The states of the lag rule and of the curriculum, in JSON types; groups in flight are listed by key."""
    groups: tuple[Group, ...]
    """Finished groups that are not trained yet, in the order of issue."""


class Pipeline:
    """The loop over an engine, a curriculum and a learner, which are independent of each other."""

    def __init__(
        self,
        *,
        engine: "Engine",
        curriculum: Curriculum,
        learner: Learner,
        make_requests: Callable[[Issued], Sequence[Request]],
        grading: Grading,
        clock: Callable[[], float] = time.monotonic,
        state: PipelineState | None = None,
        refill: Refill | None = None,
        **rule: Any,
    ) -> None:
        """`rule` are the settings of the lag rule. With a `state`, the curriculum is that of its meta["curriculum"]."""
        self._refill = refill or Refill()
        self._engine = engine
        self._curriculum = curriculum
        self._learner = learner
        self._make_requests = make_requests
        self._grading = grading
        self._clock = clock
        self.lag = LagRule(**rule, version=learner.version)
        self._finished: dict[str, Group] = {}
        if state is not None:
            self._restore(state)
        # One entry per request, filled when its completion arrives.
        self._arriving: dict[str, list[Completion | None]] = {}
        self._spent_s: dict[str, float] = dict.fromkeys(("submit", "poll", "grade", "step", "push"), 0.0)

    @property
    def curriculum_metrics(self) -> dict[str, float]:
        """Columns of a step's row about the remaining problems."""
        return self._curriculum.metrics

    @property
    def version(self) -> int:
        """Steps taken."""
        return self.lag.version

    def steps(self, stop: Callable[[], bool] = lambda: False) -> Iterator[StepDone]:
        """Yield one value per step, until the data is exhausted or `stop`, checked between two polls, is true."""
        # A new engine has neither the weights nor the version of a resumed learner.
        self._push()
        while True:
            self._submit()
            if keys := self.lag.due(last=self._curriculum.exhausted):
                yield self._step(keys)
            elif stop():
                return
            elif self.lag.num_in_flight:
                self._poll()
            else:
                assert self._curriculum.exhausted, "nothing to do, but not the end"
                return

    def state(self) -> PipelineState:
        """Return the state for a checkpoint, between two steps or after a stop. Groups in flight start over."""
        return PipelineState(
            meta={
                "lag": self.lag.state_dict(),
                "curriculum": self._curriculum.state_dict(),
                "refill": dict(self._refill.counts),
            },
            groups=tuple(self._finished[key] for key in self.lag.finished_keys),
        )

    def _restore(self, state: PipelineState) -> None:
        self.lag = self.lag.restored(state.meta["lag"])
        self._refill.counts.update(state.meta.get("refill", {}))
        self._finished = {group.key: group for group in state.groups}
        assert self.lag.version == self._learner.version, "the pipeline and the learner are of different steps"
        kept = set(self.lag.finished_keys)
        untrained = {issued.key for issued in self._curriculum.untrained}
        assert set(self._finished) == kept == untrained, "the parts disagree on which groups wait to be trained"

    def _submit(self) -> None:
        with self._timed("submit"):
            requests: list[Request] = []
            while self.lag.may_submit and (issued := self._curriculum.next()) is not None:
                asked = self._make_requests(issued)
                self.lag.submitted(issued.key)
                self._arriving[issued.key] = [None] * len(asked)
                requests.extend(asked)
            if requests:
                self._engine.submit(requests)

    def _poll(self) -> None:
        with self._timed("poll"):
            completions = self._engine.poll() if self._arriving else ()
        with self._timed("grade"):
            arrived = map(self._arrived, completions)
            # Decode all at once: many texts take little more time than one.
            if whole := [group for group in arrived if group is not None]:
                self._grading.submit(whole)
            # While nothing is being sampled, only a verdict can unblock the loop.
            groups = self._grading.poll(wait=not self._arriving)
        for group in groups:
            self._graded(group)

    def _arrived(self, completion: Completion) -> list[Completion] | None:
        """Return all completions of the group, in the order of the requests, if this is the last of them."""
        key = completion.request.group
        index = completion.request.index
        places = self._arriving.get(key, [])
        if index >= len(places) or places[index] is not None:
            raise ValueError(f"the engine returned {completion.request.key!r}, which was not requested or came twice")
        places[index] = completion
        arrived = [place for place in places if place is not None]
        if len(arrived) < len(places):
            return None
        del self._arriving[key]
        return arrived

    def _graded(self, group: Group) -> None:
        self._curriculum.graded(
            group.key, num_correct=group.num_correct, num_graded=group.num_graded, num_asked=len(group.completions)
        )
        if self._refill.replaces(group):
            self.lag.replaced(group.key)
            self._curriculum.trained(group.key)
            return
        self.lag.finished(group.key, first_version=group.first_version)
        self._finished[group.key] = group

    def _step(self, keys: Sequence[str]) -> StepDone:
        batch = Batch(version=self.lag.version, groups=tuple(self._finished[key] for key in keys))
        with self._timed("step"):
            metrics = self._learner.step(batch)
        self.lag.trained(keys)
        for key in keys:
            self._curriculum.trained(key)
            del self._finished[key]
        assert self._learner.version == self.lag.version, "a step must advance the learner's version by one"
        if self.lag.push_due:
            self._push()
            self.lag.pushed()
        timings = Timings(**{f"{part}_s": seconds for part, seconds in self._spent_s.items()})
        self._spent_s = dict.fromkeys(self._spent_s, 0.0)
        refill = self._refill.take_metrics()
        return StepDone(version=self.lag.version, batch=batch, metrics=metrics, timings=timings, refill=refill)

    def _push(self) -> None:
        with self._timed("push"):
            self._engine.push_weights(self._learner.weights(), self.lag.version)

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        start = self._clock()
        yield
        self._spent_s[part] += self._clock() - start
