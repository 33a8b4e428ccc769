"""The one loop of training; PipelineRL-k, PPO-off-policy-k and synchronous are settings of it (see lag.py).

               prompts                     whole groups                 a batch            weights, version v+1
    curriculum -------> engine.submit ... engine.poll -> grade -> lag rule -> learner.step -------> engine.push_weights
        ^                                                  |
        +------------------- pass rates -------------------+       (at grading, before any filter)

It does the first of these that it can, again and again. What each one waits for, and what unblocks it:

    submit   room under the lag rule              a step or a push
             a problem from the curriculum        a grade: a problem waits for the verdict on its last group
    step     B finished groups, and the rest      a completion; never a submission, since all in flight may finish
             still in time (drain: none in flight)
    push     push_every steps                     a step
    poll     a completion, or some tokens         the engine; no progress for stall_s seconds ends the run
    the end  the curriculum is exhausted and      a step: what is left at the end is trained as one smaller batch,
             nothing is untrained                 so that every problem of an epoch is trained exactly once

The caller pulls steps out of `Pipeline.steps()` and stops pulling when its budget is spent. Between two of them nothing
moves: there it evaluates, logs, and takes `Pipeline.state()` for a checkpoint. Torch-free and unaware of recipes.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from scalerl.tasks.curriculum import Curriculum, Issued
from scalerl.train.lag import LagRule
from scalerl.types import Batch, Completion, Group, LengthPlan, Problem, Request

if TYPE_CHECKING:
    from scalerl.rollout.engine import Engine


class Learner(Protocol):
    """What is trained. Its version is the number of steps it has taken."""

    @property
    def version(self) -> int: ...

    def step(self, batch: Batch) -> Mapping[str, float]:
        """Train on the batch and give its metrics.

        The version advances by one with every call, also if the filters left nothing to train on: the groups are used
        up, and lags count calls.
        """
        ...

    def weights(self) -> Mapping[str, Any]:
        """What the engine is to sample with next."""
        ...


class PipelineStalled(RuntimeError):
    """The engine is dead or hung: groups are in flight, and nothing comes of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Where the seconds since the step before went; the caller's own, between steps, are not in them."""

    submit_s: float
    """Choosing problems and making their requests."""
    poll_s: float
    """Generating (an engine in this process) or waiting for it (one elsewhere)."""
    grade_s: float
    step_s: float
    push_s: float

    @property
    def wait_s(self) -> float:
        """How long the learner had no batch."""
        return self.submit_s + self.poll_s + self.grade_s

    @property
    def total_s(self) -> float:
        return self.wait_s + self.step_s + self.push_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """One step, with its push if one was due."""

    version: int
    """The version the step made: the number of steps taken."""
    batch: Batch
    """What it took, before any filter; batch.lags are its lags."""
    metrics: Mapping[str, float]
    timings: Timings


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineState:
    """What a resumed run needs of the loop, taken between two steps."""

    meta: Mapping[str, Any]
    """JSON types: the state of the lag rule, and the curriculum's with the keys of what is in flight."""
    groups: tuple[Group, ...]
    """Finished, not trained yet, in the order of issue. See pack_groups."""


class Pipeline:
    """The loop over one engine, one curriculum and one learner, none of which knows of the others."""

    def __init__(
        self,
        *,
        engine: "Engine",
        curriculum: Curriculum,
        learner: Learner,
        make_requests: Callable[[Issued], Sequence[Request]],
        grade: Callable[[Sequence[Completion]], Group],
        groups_per_batch: int,
        max_lag: int,
        push_every: int = 1,
        drain: bool = False,
        stall_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        state: PipelineState | None = None,
    ) -> None:
        """With a `state`, the curriculum is the one restored from state.meta["curriculum"]."""
        self._engine = engine
        self._curriculum = curriculum
        self._learner = learner
        self._make_requests = make_requests
        self._grade = grade
        self._stall_s = stall_s
        self._clock = clock
        self._lag = LagRule(
            groups_per_batch=groups_per_batch,
            max_lag=max_lag,
            push_every=push_every,
            drain=drain,
            version=learner.version,
        )
        self._finished: dict[str, Group] = {}
        if state is not None:
            self._restore(state)
        # One place a request, filled as its completion arrives.
        self._arriving: dict[str, list[Completion | None]] = {}
        self._spent_s: dict[str, float] = dict.fromkeys(("submit", "poll", "grade", "step", "push"), 0.0)
        self._quiet_since: float | None = None
        self._work_seen = engine.work

    @property
    def version(self) -> int:
        """Steps taken."""
        return self._lag.version

    @property
    def num_in_flight(self) -> int:
        """Groups with the engine."""
        return self._lag.num_in_flight

    @property
    def num_finished(self) -> int:
        """Groups that wait for their step."""
        return self._lag.num_finished

    def steps(self) -> Iterator[StepDone]:
        """One value a step, until the data is exhausted."""
        # A fresh engine may hold other weights than a learner that was resumed, and knows no version.
        self._push()
        while True:
            self._submit()
            if keys := self._lag.due(last=self._curriculum.exhausted):
                yield self._step(keys)
            elif self._lag.num_in_flight:
                self._poll()
            else:
                assert self._curriculum.exhausted, "nothing to do, but not the end"
                return

    def state(self) -> PipelineState:
        """For a checkpoint, between two steps. Groups in flight are kept by key alone: they restart whole."""
        return PipelineState(
            meta={"lag": self._lag.state_dict(), "curriculum": self._curriculum.state_dict()},
            groups=tuple(self._finished[key] for key in self._lag.finished_keys),
        )

    def _restore(self, state: PipelineState) -> None:
        self._lag = self._lag.restored(state.meta["lag"])
        self._finished = {group.key: group for group in state.groups}
        if self._lag.version != self._learner.version:
            raise ValueError(
                f"the checkpoint's pipeline is at version {self._lag.version}, its learner at {self._learner.version}"
            )
        kept, untrained = set(self._lag.finished_keys), {issued.key for issued in self._curriculum.untrained}
        if not set(self._finished) == kept == untrained:
            raise ValueError(
                f"the checkpoint's parts disagree on which groups wait to be trained: it holds {len(self._finished)}, "
                f"the lag rule counts {len(kept)} and the curriculum {len(untrained)}"
            )

    def _submit(self) -> None:
        with self._timed("submit"):
            requests: list[Request] = []
            while self._lag.may_submit and (issued := self._curriculum.next()) is not None:
                asked = self._make_requests(issued)
                self._lag.submitted(issued.key)
                self._arriving[issued.key] = [None] * len(asked)
                requests.extend(asked)
            if requests:
                self._engine.submit(requests)

    def _poll(self) -> None:
        start = self._clock()
        with self._timed("poll"):
            completions = self._engine.poll()
        self._check_progress(start, bool(completions))
        for completion in completions:
            self._collect(completion)

    def _collect(self, completion: Completion) -> None:
        key, index = completion.request.group, completion.request.index
        places = self._arriving.get(key, [])
        if index >= len(places) or places[index] is not None:
            raise ValueError(f"the engine returned {completion.request.key!r}, which was not asked for, or came before")
        places[index] = completion
        arrived = [place for place in places if place is not None]
        if len(arrived) < len(places):
            return
        del self._arriving[key]
        with self._timed("grade"):
            group = self._grade(arrived)
        assert group.key == key, f"group {key} was graded as {group.key}"
        self._curriculum.graded(
            key, num_correct=group.num_correct, num_graded=group.num_graded, num_asked=len(group.completions)
        )
        self._lag.finished(key, first_version=group.first_version)
        self._finished[key] = group

    def _step(self, keys: Sequence[str]) -> StepDone:
        batch = Batch(version=self._lag.version, groups=tuple(self._finished[key] for key in keys))
        with self._timed("step"):
            metrics = self._learner.step(batch)
        self._lag.trained(keys)
        for key in keys:
            self._curriculum.trained(key)
            del self._finished[key]
        assert self._learner.version == self._lag.version, "a step must advance the learner's version by one"
        if self._lag.push_due:
            self._push()
            self._lag.pushed()
        timings = Timings(**{f"{part}_s": seconds for part, seconds in self._spent_s.items()})
        self._spent_s = dict.fromkeys(self._spent_s, 0.0)
        return StepDone(version=self._lag.version, batch=batch, metrics=metrics, timings=timings)

    def _push(self) -> None:
        with self._timed("push"):
            self._engine.push_weights(self._learner.weights(), self._lag.version)

    def _check_progress(self, poll_start: float, any_completion: bool) -> None:
        waiting = f"{self._lag.num_in_flight} groups are in flight, the oldest {next(iter(self._arriving), None)!r}"
        if any_completion or self._engine.work != self._work_seen:
            self._work_seen = self._engine.work
            self._quiet_since = None
        elif self._engine.num_pending == 0:
            raise PipelineStalled(f"the engine has nothing left to do, but {waiting}: it lost their requests")
        elif self._quiet_since is None:
            self._quiet_since = poll_start
        if self._quiet_since is not None and self._clock() - self._quiet_since >= self._stall_s:
            raise PipelineStalled(
                f"the engine made no token and finished nothing for {self._stall_s:g} s while {waiting}: it is dead or "
                f"hung"
            )

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        start = self._clock()
        yield
        self._spent_s[part] += self._clock() - start


def pack_groups(groups: Sequence[Group]) -> tuple[dict[str, NDArray[Any]], list[dict[str, Any]]]:
    """Groups as flat arrays (for safetensors) and JSON types; unpack_groups gives back equal ones."""
    completions = [completion for group in groups for completion in group.completions]
    prompts = [np.array(completion.request.prompt_tokens, dtype=np.int32) for completion in completions]
    arrays: dict[str, NDArray[Any]] = {
        "tokens": _joined([completion.tokens for completion in completions], np.int32),
        "log_probs": _joined([completion.log_probs for completion in completions], np.float32),
        "versions": _joined([completion.versions for completion in completions], np.int32),
        "forced": _joined([completion.forced for completion in completions], np.bool_),
        "prompt_tokens": _joined(prompts, np.int32),
    }
    meta = [
        {
            "key": group.key,
            "problem": asdict(group.problem),
            "correct": list(group.correct),
            "rewards": list(group.rewards),
            "completions": [_completion_meta(completion) for completion in group.completions],
        }
        for group in groups
    ]
    return arrays, meta


def unpack_groups(arrays: Mapping[str, NDArray[Any]], meta: Sequence[Mapping[str, Any]]) -> tuple[Group, ...]:
    """The groups that pack_groups was given."""
    token_place, prompt_place = 0, 0
    groups: list[Group] = []
    for packed in meta:
        problem, completions = Problem(**packed["problem"]), []
        for entry in packed["completions"]:
            token_end = token_place + entry["num_tokens"]
            prompt_end = prompt_place + entry["num_prompt_tokens"]
            length = entry["length"]
            request = Request(
                group=packed["key"],
                index=entry["index"],
                problem=problem,
                prompt_tokens=tuple(arrays["prompt_tokens"][prompt_place:prompt_end].tolist()),
                seed=entry["seed"],
                length=LengthPlan(
                    thinking_budget=length["thinking_budget"],
                    thinking_end=tuple(length["thinking_end"]),
                    marker=tuple(length["marker"]),
                    answer_budget=length["answer_budget"],
                ),
                temperature=entry["temperature"],
                top_p=entry["top_p"],
            )
            per_token = {name: arrays[name][token_place:token_end] for name in _PER_TOKEN}
            completions.append(
                Completion(request=request, **per_token, finish=entry["finish"], interrupted_at=entry["interrupted_at"])
            )
            token_place, prompt_place = token_end, prompt_end
        groups.append(
            Group(
                key=packed["key"],
                problem=problem,
                completions=tuple(completions),
                correct=tuple(packed["correct"]),
                rewards=tuple(packed["rewards"]),
            )
        )
    if (token_place, prompt_place) != (len(arrays["tokens"]), len(arrays["prompt_tokens"])):
        raise ValueError(
            f"the groups count {token_place} tokens and {prompt_place} of prompts, their arrays hold "
            f"{len(arrays['tokens'])} and {len(arrays['prompt_tokens'])}"
        )
    return tuple(groups)


_PER_TOKEN = ("tokens", "log_probs", "versions", "forced")


def _joined(parts: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype=dtype), *parts])


def _completion_meta(completion: Completion) -> dict[str, Any]:
    request = completion.request
    return {
        "index": request.index,
        "seed": request.seed,
        "length": asdict(request.length),
        "temperature": request.temperature,
        "top_p": request.top_p,
        "finish": completion.finish,
        "interrupted_at": completion.interrupted_at,
        "num_tokens": len(completion),
        "num_prompt_tokens": len(request.prompt_tokens),
    }
