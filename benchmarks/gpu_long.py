"""The loop over long completions, for the part `loop` of benchmarks/gpu.py with 1.5b-16k: the middle of a run.

From empty slots the first completion of 14k tokens takes minutes, so the slots begin as they are in the middle of a
run: as many groups as they hold, evenly spread over the way from prompt to end, the first issued being the furthest.
What a completion has behind it is random, read by the engine as if it belonged to the prompt, and put back before the
learner sees it: a step trains prompts of 512 tokens with all of their 12k to 14k tokens, and thinking is interrupted in
each. The next groups begin at their prompts.

alone_*        until the first step begins, all slots sampled and nothing trained: tokens/s, and the mean context
loop_*         the steps after it, each with its sampling and its push
of_parts       (sampled tokens / alone_tokens_per_s + learner tokens / rate of the part `learn`) / the loop's seconds.
               That rate is of sequences of 13,824 tokens. Contexts in the loop grow beyond those of `alone`, so that
               sampling in it is a little slower for that reason too.
lag_*          of tokens by the version that sampled them; what was there at the beginning has version 0
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gpu_cases import PER_GROUP, Case, Subject, now
from gpu_loop import Figures, Prompts, learner_tokens, loop_times, make_pipeline, pushing_alone, take

from scalerl.models.shape import work_flops
from scalerl.types import Completion, LengthPlan, Request, Work

LONG_S = 100.0
"""No step begins after it."""
LONG_STEPS = 4
SAY_S = 10.0
"""Seconds between lines of progress: a process that prints nothing is killed."""


class HalfWay:
    """Requests whose first groups are on their way, and the whole completions of what comes back."""

    def __init__(self, case: Case, prompts: Prompts, vocab: int) -> None:
        self._prompts, self._vocab, self._rng = prompts, vocab, np.random.default_rng(1)
        num_groups, least = max(case.slots // PER_GROUP, 1), _least_length(case)
        self._done = [int(least * (number + 0.5) / num_groups) for number in reversed(range(num_groups))]
        self._begun: dict[str, tuple[Request, np.ndarray]] = {}

    def requests(self, key: str, number: int) -> list[Request]:
        requests = self._prompts.requests(key, number)
        if not self._done:
            return requests
        num_done = self._done.pop(0)
        return [self._begin(request, num_done) for request in requests]

    def _begin(self, request: Request, num_done: int) -> Request:
        done = self._rng.integers(0, self._vocab, num_done).astype(np.int32)
        self._begun[request.key] = request, done
        prompt = request.prompt_tokens + tuple(done.tolist())
        return replace(request, prompt_tokens=prompt, length=rest_of(request.length, num_done))

    def whole(self, completion: Completion) -> Completion:
        """Return the completion with the tokens that it began with."""
        if completion.request.key not in self._begun:
            return completion
        request, done = self._begun.pop(completion.request.key)
        budget, forced = request.length.thinking_budget or 0, np.zeros(len(done), dtype=np.bool_)
        at = completion.interrupted_at
        if at is not None:
            at += len(done)
        elif budget <= len(done):
            at = budget
            forced[at : at + len(request.length.marker)] = True
        log_probs = np.where(forced, 0.0, -np.log(self._vocab)).astype(np.float32)
        return Completion(
            request=request,
            tokens=np.concatenate([done, completion.tokens]),
            log_probs=np.concatenate([log_probs, completion.log_probs]),
            versions=np.concatenate([np.zeros(len(done), dtype=np.int32), completion.versions]),
            forced=np.concatenate([forced, completion.forced]),
            finish=completion.finish,
            interrupted_at=at,
        )


def _least_length(case: Case) -> int:
    """Return the length of the shortest completion."""
    assert case.thinking is not None
    return case.thinking[0] + case.answer


def rest_of(plan: LengthPlan, num_done: int) -> LengthPlan:
    """Return the plan of what is left after that many tokens."""
    budget = plan.thinking_budget or 0
    if num_done < budget:
        return replace(plan, thinking_budget=budget - num_done)
    return LengthPlan(answer_budget=plan.max_tokens - num_done)


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """The state of the engine after a poll."""

    at: float
    work: Work


class Watched:
    """An engine that makes completions whole, remembers its polls and prints how far it is."""

    def __init__(self, engine: Any, half_way: HalfWay, say: str) -> None:
        self._engine, self._half_way, self._say = engine, half_way, say
        self._said = self._start = time.perf_counter()
        self.polls: list[Poll] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def poll(self) -> Sequence[Completion]:
        completions = [self._half_way.whole(completion) for completion in self._engine.poll()]
        self.polls.append(Poll(at=time.perf_counter(), work=self._engine.work))
        if self.polls[-1].at - self._said > SAY_S:
            self._said = self.polls[-1].at
            self.say(f"{self._engine.work.decoded:,} tokens sampled")
        return completions

    def say(self, text: str) -> None:
        print(f"{self._say}: {time.perf_counter() - self._start:.0f} s, {text}", flush=True)


def long_loop(subject: Subject, prompts: Prompts) -> Figures:
    """Run the loop from the middle of a run: one step before what is measured, then LONG_STEPS."""
    case, learner = subject.case, subject.learner
    engine = subject.engine()
    # Records the graph of a decode step.
    engine.submit(subject.requests([4] * case.slots, prompt=case.short_prompt, per_prompt=case.slots))
    while engine.num_pending:
        engine.poll()
    half_way = HalfWay(case, prompts, subject.vocab)
    watched = Watched(engine, half_way, "loop")
    running = make_pipeline(subject, watched, half_way)
    steps = _reported(running.steps(), watched)
    next(steps)
    alone = _alone(watched.polls)
    start, before, polls = now(subject.device), engine.work, len(watched.polls)
    done = take(steps, LONG_STEPS, LONG_S)
    elapsed, work, polls = now(subject.device) - start, engine.work, len(watched.polls) - polls
    metrics = [dict(step.metrics) for step in done]
    learner_flops = sum(row["batch/flops"] for row in metrics)
    flops = learner_flops + work_flops(subject.shape, before, work)
    learning_s = sum(row.get("time/step_s", step.timings.step_s) for row, step in zip(metrics, done, strict=True))
    decoded, trained = work.decoded - before.decoded, sum(learner_tokens(step.batch.groups) for step in done)
    checkpointing = bool(getattr(learner.policy, "gradient_checkpointing", False))
    rate = subject.figures.get("learn", {}).get(f"{'checkpointed' if checkpointing else 'plain'}_learner_tokens_per_s")
    parts_s = None if rate is None else decoded / alone["alone_tokens_per_s"] + trained / rate
    figures: Figures = {
        **alone,
        "alone_push_s": pushing_alone(subject, engine),
        **loop_times("loop", done, polls, decoded),
        **prompts.sizes(case),
        "steps_per_s": len(done) / elapsed,
        "loop_tokens_per_s": decoded / elapsed,
        "trained_tokens_per_s": trained / elapsed,
        **({} if parts_s is None else {"of_parts": parts_s / elapsed}),
        "attended": (work.attended - before.attended) / max(decoded, 1),
        "loop_s": elapsed,
        "num_steps": len(done),
        "learning_s": learning_s,
        "learner_mfu_attention": learner_flops / max(learning_s, 1e-9) / subject.ceiling["matmul"],
        "flops_of_matmul": flops / elapsed / subject.ceiling["matmul"],
        "lag_max": max(lag for step in done for lag in step.batch.lags),
        "lag_mean": sum(row["rollout/lag_mean"] for row in metrics) / len(metrics),
        "interrupted": sum(row["rollout/interrupted_frac"] for row in metrics) / len(metrics),
        "length_mean": sum(row["rollout/length_mean"] for row in metrics) / len(metrics),
        "gradient_checkpointing": checkpointing,
    }
    engine.close()
    return figures


def _reported(steps: Iterator[Any], watched: Watched) -> Iterator[Any]:
    for number, step in enumerate(steps, 1):
        watched.say(f"step {number} with completions of {step.metrics['rollout/length_mean']:,.0f} tokens")
        yield step


def _alone(polls: Sequence[Poll]) -> Figures:
    """Return the rate of sampling before the first step; prompts are read in the first poll."""
    work, seconds = polls[-1].work - polls[0].work, polls[-1].at - polls[0].at
    return {
        "alone_tokens_per_s": work.decoded / seconds,
        "alone_poll_s": seconds / (len(polls) - 1),
        "alone_attended": work.attended / work.decoded,
    }
