"""The part `loop` of benchmarks/gpu.py: PipelineRL-8 on one device, and its two parts alone at the loop's own shapes.

sampling alone   the same engine and requests, as many in flight as in the loop, nothing trained
learning alone   the learner's steps on batches of these completions

of_parts         (sampled tokens / rate of the part `sample` + learner tokens / rate of the part `learn`) / loop's
                 seconds: full slots, sequences of one length. A prompt that completions share counts once where the
                 learner computes it once.
alone_over_loop  the same with the rates of sampling and learning alone at the loop's own shapes. Not a share: in the
                 loop the host's work for one overlaps the device's for the other, so that it may exceed 1.

For a prediction of the loop from its parts, seconds are recorded too: of a poll, a push and steps of a whole and of
half a batch alone (`alone_*_s`), and, as a run's metrics have them, those of this loop (`loop_*`) and of another one
whose batches are half as large (`half_*`).
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from gpu_cases import PER_GROUP, Case, Subject, make_group, make_request, mixed_lengths, now

from scalerl.learner.share import num_inputs, sharing_pays
from scalerl.loop.pipeline import Pipeline, StepDone
from scalerl.rollout.torch.engine import TorchEngine
from scalerl.run.clock import step_times
from scalerl.run.host import frozen_objects
from scalerl.tasks.curriculum import Curriculum, uniform
from scalerl.types import Batch, Completion, Group, LengthPlan, Request

Figures = dict[str, Any]
NUM_PROBLEMS = 2000
MAX_LAG = 8


class FirstHalf:
    """A grader that takes no time: see make_group."""

    def __init__(self) -> None:
        self._groups: list[Group] = []

    def submit(self, completions: Sequence[Completion]) -> None:
        self._groups.append(make_group(completions))

    def poll(self, *, wait: bool = False) -> list[Group]:
        done, self._groups = self._groups, []
        return done


class Prompts:
    """Random prompts and lengths, drawn beforehand; requests are made when they are asked for, as in a run."""

    def __init__(self, case: Case, vocab: int) -> None:
        rng = np.random.default_rng(0)
        self._tokens = [tuple(row) for row in rng.integers(0, vocab, (NUM_PROBLEMS, case.short_prompt)).tolist()]
        self._plans = [self._lengths(case, rng) for _ in range(NUM_PROBLEMS)]

    @staticmethod
    def _lengths(case: Case, rng: np.random.Generator) -> list[LengthPlan]:
        if case.thinking is None:
            return [LengthPlan(answer_budget=length) for length in mixed_lengths(rng, case, PER_GROUP)]
        budgets = rng.integers(case.thinking[0], case.thinking[1], PER_GROUP, endpoint=True).tolist()
        # Two tokens that a random model does not sample one after the other: thinking is always interrupted.
        return [
            LengthPlan(thinking_budget=budget, thinking_end=(1, 2), marker=(2,), answer_budget=case.answer)
            for budget in budgets
        ]

    def sizes(self, case: Case) -> Figures:
        """Return what a simulation must know of the loop: slots, completions per group, and a sample of lengths."""
        lengths = sorted(plan.max_tokens for plans in self._plans for plan in plans)
        quantiles = lengths[len(lengths) // 128 :: len(lengths) // 64]
        return {"slots": case.slots, "per_group": PER_GROUP, "lengths": quantiles}

    def requests(self, key: str, number: int) -> list[Request]:
        tokens = self._tokens[number]
        return [make_request(key, index, tokens, plan) for index, plan in enumerate(self._plans[number])]


def loop(subject: Subject, seconds: float) -> Figures:
    """Run PipelineRL-8 with our engine and learner on one device; prompts are random."""
    prompts = Prompts(subject.case, subject.vocab)
    # Made before what is measured.
    _ = subject.learner
    with frozen_objects():
        if subject.case.thinking is not None:
            from gpu_long import long_loop

            return long_loop(subject, prompts)
        alone = parts_alone(subject, prompts, seconds)
        engine = PollCounter(subject.engine())
        figures = run_loop(subject, engine, prompts, seconds, alone)
        engine.close()
        engine = PollCounter(subject.engine())
        running = make_pipeline(subject, engine, prompts, groups=half_groups(subject.case)).steps()
        # Unlike whole batches, batches of this size have hardly been trained yet: most of their shapes are still new.
        take(running, 100, seconds)
        before = engine.polls, engine.work.decoded
        steps = take(running, 48, seconds)
        figures |= loop_times("half", steps, engine.polls - before[0], engine.work.decoded - before[1])
        engine.close()
    return figures | alone


class PollCounter:
    """An engine that counts its polls."""

    def __init__(self, engine: TorchEngine) -> None:
        self._engine, self.polls = engine, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def poll(self) -> list[Completion]:
        self.polls += 1
        return self._engine.poll()


def loop_times(name: str, steps: Sequence[StepDone], polls: int, decoded: int) -> Figures:
    """Return means per step: the seconds as `metrics.jsonl` of a run has them, and how much was done in them."""
    num, times = len(steps), [step_times(done) for done in steps]
    means = {part: sum(row[f"time/{part}"] for row in times) / num for part in ("wait_s", "step_s", "push_s")}
    counts = {
        "groups": len(steps[0].batch.groups),
        "polls": polls / num,
        "sampled": decoded / num,
        "trained": sum(trained_tokens(done.batch.groups) for done in steps) / num,
    }
    return {f"{name}_{key}": value for key, value in (means | counts).items()}


def parts_alone(subject: Subject, prompts: Prompts, seconds: float) -> Figures:
    """Return the rates of sampling and of learning with the loop's own requests and batches."""
    sampled, groups = sampling_alone(subject, prompts, seconds)
    size, half = subject.case.groups_per_batch, half_groups(subject.case)
    learned = learning_alone(subject, groups[-8 * size :], size, seconds)
    # Half of a batch shows how much of a step does not depend on its tokens.
    halved = learning_alone(subject, groups[-4 * size :], half, seconds / 2)
    return sampled | learned | {f"{name}_half": value for name, value in halved.items()}


def half_groups(case: Case) -> int:
    return max(case.groups_per_batch // 2, 1)


def sampling_alone(subject: Subject, prompts: Prompts, seconds: float) -> tuple[Figures, list[Group]]:
    """Sample the loop's requests, as many in flight as in the loop; return the groups too."""
    case, engine, num_batches = subject.case, subject.engine(), 8
    decode_s = decoding_alone(subject, engine, prompts)
    in_flight = (MAX_LAG + 1) * case.groups_per_batch * PER_GROUP
    groups: list[Group] = []
    arriving: dict[str, list[Completion]] = {}
    number, polls, start, before, until, num_before = 0, 0, 0.0, 0, 0.0, 0
    # The first rounds fill the slots with completions at every stage.
    while len(groups) < 2 * num_batches * case.groups_per_batch and (polls < 2 or time.perf_counter() < until):
        while engine.num_pending < in_flight:
            engine.submit(prompts.requests(f"0/{number}", number % NUM_PROBLEMS))
            number += 1
        for completion in engine.poll():
            whole = arriving.setdefault(completion.request.group, [])
            whole.append(completion)
            if len(whole) == PER_GROUP:
                groups.append(make_group(sorted(arriving.pop(completion.request.group), key=_index)))
        polls += until > 0
        if not until and len(groups) >= num_batches * case.groups_per_batch:
            start, before, until = time.perf_counter(), engine.work.decoded, time.perf_counter() + 2 * seconds
            num_before = len(groups)
    elapsed, decoded = time.perf_counter() - start, engine.work.decoded - before
    push_s = pushing_alone(subject, engine)
    engine.close()
    figures = {
        "alone_tokens_per_s": decoded / elapsed,
        "alone_poll_s": elapsed / polls,
        "alone_groups_per_poll": (len(groups) - num_before) / polls,
        "alone_decode_s": decode_s,
        "alone_push_s": push_s,
    }
    return figures, groups


def decoding_alone(subject: Subject, engine: Any, prompts: Prompts) -> float:
    """Return the seconds of a poll in which no completion begins or ends; contexts are as long as in the loop."""
    case, lengths = subject.case, np.array(prompts.sizes(subject.case)["lengths"], dtype=float)
    length = min(max(int((lengths**2).sum() / lengths.sum()), 80), case.context - case.short_prompt)
    requests = subject.requests([length] * case.slots, prompt=case.short_prompt, per_prompt=PER_GROUP)
    seconds, polls = 0.0, 0
    for number in range(5):
        engine.submit(requests)
        engine.poll()
        start, last, num = time.perf_counter(), 0.0, 0
        while engine.num_pending:
            last, num = time.perf_counter(), num + 1
            engine.poll()
        # The first round records graphs; the last poll of a round ends its completions.
        if number:
            seconds, polls = seconds + last - start, polls + num - 1
    return seconds / max(polls, 1)


def pushing_alone(subject: Subject, engine: Any) -> float:
    """Return the seconds of a push of weights when nothing else runs."""
    start, num = now(subject.device), 4
    for _ in range(num):
        engine.push_weights(subject.learner.weights(), engine.version)
    return (now(subject.device) - start) / num


def learning_alone(subject: Subject, groups: Sequence[Group], size: int, seconds: float) -> Figures:
    """Train batches of that many groups, one after the other."""
    learner = subject.learner
    batches = [groups[place : place + size] for place in range(0, len(groups) - size + 1, size)][-8:]
    # A pass is a graph from the second time on that its shape comes.
    for part in batches * (1 if getattr(learner.policy, "graphs", None) is None else 2):
        learner.step(Batch(version=learner.version, groups=part))
    began, trained, until, steps = now(subject.device), 0, time.perf_counter() + seconds, 0
    for part in batches:
        learner.step(Batch(version=learner.version, groups=part))
        trained += learner_tokens(part)
        steps += 1
        if time.perf_counter() > until:
            break
    elapsed, tokens = now(subject.device) - began, sum(map(trained_tokens, batches[:steps]))
    return {
        "alone_learner_tokens_per_s": trained / elapsed,
        "alone_step_s": elapsed / steps,
        "alone_trained": tokens / steps,
    }


def _index(completion: Completion) -> int:
    return completion.request.index


def run_loop(subject: Subject, engine: PollCounter, prompts: Prompts, seconds: float, alone: Figures) -> Figures:
    running = make_pipeline(subject, engine, prompts).steps()
    # All that may be in flight is asked for before the first step, so the first steps have their batches at once; and
    # a pass is a graph from the second time on that its shape comes.
    take(running, 30, seconds)
    start, host, decoded, polls = now(subject.device), time.process_time(), engine.work.decoded, engine.polls
    steps = take(running, 32, seconds)
    elapsed, decoded = now(subject.device) - start, engine.work.decoded - decoded
    host, polls = time.process_time() - host, engine.polls - polls
    num, step_s = len(steps), elapsed / len(steps)
    tokens = sum(learner_tokens(done.batch.groups) for done in steps) / num
    parts_s = decoded / num / alone["alone_tokens_per_s"] + tokens / alone["alone_learner_tokens_per_s"]
    figures: Figures = {
        "steps_per_s": 1 / step_s,
        "loop_tokens_per_s": decoded / elapsed,
        "alone_over_loop": parts_s / step_s,
        "sampled_per_step": decoded / num,
        "learner_tokens_per_step": tokens,
        "process_s_per_step": host / num,
        "lag_max": max(lag for done in steps for lag in done.batch.lags),
        **loop_times("loop", steps, polls, decoded),
        **prompts.sizes(subject.case),
    }
    best = subject.figures
    if "tokens_per_s" in best.get("sample", {}) and "learner_tokens_per_s" in best.get("learn", {}):
        computed = sum(computed_tokens(subject, done.batch.groups) for done in steps) / num
        best_s = decoded / num / best["sample"]["tokens_per_s"] + computed / best["learn"]["learner_tokens_per_s"]
        figures |= {"of_parts": best_s / step_s, "computed_tokens_per_step": computed}
    if subject.device.type == "cuda":
        # By a profiler, which slows the host down: it says how long kernels run in a step, not how long a step takes.
        with busy_seconds() as busy:
            profiled = len(take(running, 8, seconds))
            torch.cuda.synchronize()
        figures |= {"busy_s_per_step": busy[0] / profiled, "idle": max(0.0, 1 - busy[0] / profiled / step_s)}
    return figures


def trained_tokens(groups: Sequence[Group]) -> int:
    """Return the tokens of all completions, as `scalerl simulate` counts them."""
    return sum(len(completion) for group in groups for completion in group.completions)


def learner_tokens(groups: Sequence[Group]) -> int:
    """Return the tokens that a step is given: those of each completion and of its prompt."""
    return sum(num_inputs(completion) for group in groups for completion in group.completions)


def computed_tokens(subject: Subject, groups: Sequence[Group]) -> int:
    """Return the tokens that a step computes: a shared prompt counts once where the learner shares it."""
    completions = [completion for group in groups for completion in group.completions]
    share_from, rows = subject.learner.policy.share_from, np.arange(len(completions))
    if not sharing_pays(completions, rows, budget=subject.case.pass_tokens, share_from=share_from):
        return learner_tokens(groups)
    prompts = {completion.request.prompt_tokens for completion in completions}
    return sum(len(prompt) - 1 for prompt in prompts) + sum(map(len, completions))


def make_pipeline(subject: Subject, engine: Any, prompts: Any = None, *, groups: int | None = None) -> Pipeline:
    """`prompts` has a method `requests`, as Prompts has; `groups` per batch, the case's own unless given."""
    drawn = prompts or Prompts(subject.case, subject.vocab)
    return Pipeline(
        engine=engine,
        curriculum=Curriculum([f"{number:04}" for number in range(NUM_PROBLEMS)], seed=0, retires=uniform),
        learner=subject.learner,
        make_requests=lambda issued: drawn.requests(issued.key, int(issued.problem_id)),
        grading=FirstHalf(),
        groups_per_batch=groups or subject.case.groups_per_batch,
        max_lag=MAX_LAG,
    )


def take(running: Iterator[StepDone], most: int, seconds: float) -> list[StepDone]:
    """Run that many steps, or those that begin within the time; at least two."""
    until, steps = time.perf_counter() + seconds, []
    while len(steps) < most and (len(steps) < 2 or time.perf_counter() < until):
        steps.append(next(running))
    return steps


@contextmanager
def busy_seconds() -> Iterator[list[float]]:
    """Return the seconds in which some kernel or copy ran."""
    busy: list[float] = []
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        yield busy
    results: Any = profile.profiler
    spans = [
        (event.start_ns(), event.start_ns() + event.duration_ns())
        for event in results.kineto_results.events()
        if event.device_type().name == "CUDA" and not event.is_user_annotation()
    ]
    busy.append(union(spans) / 1e9)


def union(spans: Sequence[tuple[int, int]]) -> int:
    """Return the total length of the union of intervals."""
    total, end = 0, 0
    for first, last in sorted(spans):
        total += max(last - max(first, end), 0)
        end = max(end, last)
    return total
