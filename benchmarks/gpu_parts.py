"""The parts of benchmarks/gpu.py, each a function from a Subject to figures; one JSON line per part.

Started by gpu.py in a separate process, which may be killed: python benchmarks/gpu_parts.py OPTIONS-AS-JSON
"""

import copy
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import transformers
from gpu import DEVICE_LOST
from gpu_cases import (
    CASES,
    PER_GROUP,
    Case,
    Subject,
    make_batch,
    make_group,
    make_request,
    mixed_lengths,
    now,
    quick,
)
from gpu_peers import run_continuous, run_generate, run_static

from scalerl.rollout.torch.engine import TorchEngine
from scalerl.run.host import frozen_objects
from scalerl.types import Completion, Group, Request

Figures = dict[str, Any]


def sample(subject: Subject, seconds: float) -> Figures:
    """Sample in all slots, from a full prompt to the end of the context; timed after all prompts are prefilled."""
    case, engine = subject.case, subject.engine()
    best: Figures = {}
    until = time.perf_counter() + seconds
    for number in range(4):
        engine.submit(subject.requests([case.context - case.prompt] * case.slots, prompt=case.prompt))
        engine.poll()
        # No waiting for the device here: the second chunk is under way and is counted as soon as it is collected.
        # From the return of one poll to that of another is the time of the chunks collected in between.
        start, before = time.perf_counter(), engine.work
        while engine.num_pending:
            engine.poll()
        elapsed, decoded = time.perf_counter() - start, engine.work.decoded - before.decoded
        attended = (engine.work.attended - before.attended) / decoded
        # The first round makes what is made once: graphs and kernels.
        if number and decoded / elapsed > best.get("tokens_per_s", 0.0):
            limit = case.slots / decode_limit(subject, attended, subject.ceiling)
            best = {"tokens_per_s": decoded / elapsed, "limit": limit, "of_limit": decoded / elapsed / limit}
        if best and time.perf_counter() > until:
            break
    engine.close()
    return best


def decode_limit(subject: Subject, attended: float, ceiling: Mapping[str, float]) -> float:
    """Return the least seconds of one token for every slot; see gpu.py."""
    config, shape, slots = subject.model.config, subject.shape, subject.case.slots
    item = 2 if subject.device.type == "cuda" else 4
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    cached = 2 * shape.layers * config.num_key_value_heads * size
    parts = (
        (item * shape.body_params, 2 * shape.body_params * slots),
        (item * cached * attended * slots, 4 * shape.layers * shape.attention_width * attended * slots),
        (4 * shape.head_params, 2 * shape.head_params * slots),
        (8 * config.vocab_size * slots, 0),
    )
    return sum(max(moved / ceiling["bandwidth"], flops / ceiling["matmul"]) for moved, flops in parts)


def learn(subject: Subject, seconds: float) -> Figures:
    """Train on packed sequences of one length, with every token trained."""
    case, start = subject.case, now(subject.device)
    num = max(case.step_tokens // case.sequence, 2)
    learner, times = subject.learner, []
    prepared_s, until = now(subject.device) - start, time.perf_counter() + seconds
    # The first step compiles what is left to compile.
    while len(times) < 6 and (len(times) < 2 or time.perf_counter() < until):
        batch = make_batch(learner.version, subject.vocab, num, case.sequence)
        start = now(subject.device)
        learner.step(batch)
        times.append(now(subject.device) - start)
    shape, elapsed, tokens = subject.shape, statistics.median(times[1:]), num * case.sequence
    mfu = 6 * (shape.body_params + shape.head_params) * tokens / elapsed / subject.ceiling["matmul"]
    return {"learner_tokens_per_s": tokens / elapsed, "mfu": mfu, "learner_made_s": prepared_s}


class FirstHalf:
    """A grader that takes no time: see make_group."""

    def __init__(self) -> None:
        self._groups: list[Group] = []

    def submit(self, completions: Sequence[Completion]) -> None:
        # A budget that ends a completion truncates it, and truncated ones are not trained on.
        self._groups.append(make_group([replace(completion, finish="stop") for completion in completions]))

    def poll(self, *, wait: bool = False) -> list[Group]:
        done, self._groups = self._groups, []
        return done


def loop(subject: Subject, seconds: float) -> Figures:
    """Run PipelineRL-8 with our engine and learner on one device; prompts are random, lengths log-uniform."""
    engine = subject.engine()
    with frozen_objects():
        figures = run_loop(subject, engine, seconds)
    engine.close()
    return figures


def run_loop(subject: Subject, engine: TorchEngine, seconds: float) -> Figures:
    running = make_pipeline(subject, engine).steps()
    # All that may be in flight is asked for before the first step, so the first steps have their batches at once; and
    # a pass is a graph from the second time on that its shape comes.
    take(running, 30, seconds)
    start, decoded = now(subject.device), engine.work.decoded
    steps = take(running, 24, seconds)
    elapsed, decoded = now(subject.device) - start, engine.work.decoded - decoded
    figures: Figures = {"steps_per_s": steps / elapsed, "loop_tokens_per_s": decoded / elapsed}
    if subject.device.type == "cuda":
        # By a profiler, which slows the host down: it says how long kernels run in a step, not how long a step takes.
        with busy_seconds() as busy:
            profiled = take(running, 8, seconds)
            torch.cuda.synchronize()
        figures |= {"busy_s_per_step": busy[0] / profiled, "idle": max(0.0, 1 - busy[0] / profiled * steps / elapsed)}
    return figures


def make_pipeline(subject: Subject, engine: TorchEngine) -> Any:
    from scalerl.loop.pipeline import Pipeline
    from scalerl.tasks.curriculum import Curriculum, uniform

    case = subject.case

    def requests(issued: Any) -> list[Request]:
        rng = np.random.default_rng(int(issued.problem_id))
        prompt = rng.integers(0, subject.vocab, case.short_prompt).tolist()
        lengths = mixed_lengths(rng, case, PER_GROUP)
        return [make_request(issued.key, index, prompt, length) for index, length in enumerate(lengths)]

    return Pipeline(
        engine=engine,
        curriculum=Curriculum([f"{number:04}" for number in range(2000)], seed=0, retires=uniform),
        learner=subject.learner,
        make_requests=requests,
        grading=FirstHalf(),
        groups_per_batch=max(case.slots // PER_GROUP // 4, 1),
        max_lag=8,
    )


def take(running: Iterator[Any], most: int, seconds: float) -> int:
    """Run that many steps, or those that begin within the time; at least two."""
    until, steps = time.perf_counter() + seconds, 0
    while steps < most and (steps < 2 or time.perf_counter() < until):
        next(running)
        steps += 1
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


def mixed(subject: Subject, seconds: float) -> Figures:
    """Sample requests of mixed lengths with our engine, more than it has slots."""
    subject.forget_learner()
    engine, requests = subject.engine(), subject.mixed_requests
    rates = []
    until = time.perf_counter() + seconds
    for number in range(3):
        start = now(subject.device)
        engine.submit(requests)
        while engine.num_pending:
            engine.poll()
        if number:
            rates.append(sum(request.length.max_tokens for request in requests) / (now(subject.device) - start))
        if rates and time.perf_counter() > until:
            break
    engine.close()
    return {"mixed_tokens_per_s": max(rates)}


def generate(subject: Subject, seconds: float) -> Figures:
    return _peer(subject, lambda model: run_generate(model, one_batch(subject)))


def static(subject: Subject, seconds: float) -> Figures:
    return _peer(subject, lambda model: run_static(model, one_batch(subject)))


def one_batch(subject: Subject) -> Sequence[Request]:
    """Return one batch, for peers that process batch after batch, each of which takes as long."""
    return subject.mixed_requests[: subject.case.slots]


def continuous(subject: Subject, seconds: float) -> Figures:
    slots = subject.case.slots
    return _peer(subject, lambda model: run_continuous(model, subject.mixed_requests, slots, seconds=seconds))


def _peer(subject: Subject, run: Callable[[Any], tuple[int, float]]) -> Figures:
    subject.forget_learner()
    model = copy.deepcopy(subject.model)
    if subject.device.type == "cuda":
        model = model.to(torch.bfloat16)
    tokens, elapsed = run(model)
    return {"tokens_per_s": tokens / elapsed, "num_tokens": tokens, "measured_s": elapsed}


PARTS: dict[str, Callable[[Subject, float], Figures]] = {
    "sample": sample,
    "learn": learn,
    "loop": loop,
    "mixed": mixed,
    "generate": generate,
    "continuous": continuous,
    "static": static,
}


def measure(subject: Subject, part: str, seconds: float) -> Figures:
    """Return the figures of a part, or why there are none."""
    on_gpu, start = subject.device.type == "cuda", time.perf_counter()
    gc.collect()
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(subject.device)
    try:
        figures = PARTS[part](subject, seconds)
    except Exception as error:  # Whatever it was: the other parts are still to be measured.
        lines = str(error).strip().splitlines()
        return {"failed": f"{type(error).__name__}: {lines[0] if lines else ''}", "took_s": time.perf_counter() - start}
    if on_gpu:
        figures["peak_gib"] = torch.cuda.max_memory_allocated(subject.device) / 2**30
    return figures | {"took_s": time.perf_counter() - start}


def about(device: torch.device) -> dict[str, str]:
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def main(options: dict[str, Any]) -> int:
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    device = torch.device(options["device"] or ("cuda" if torch.cuda.is_available() else "cpu"))
    case: Case = CASES[options["shape"]]
    subject = Subject(quick(case) if options["quick"] else case, device, weights=options["weights"])
    known = about(device) | {"shape": options["shape"], "matmul_params": sum_params(subject)} | subject.ceiling
    for part in options["parts"]:
        figures = measure(subject, part, options["seconds"])
        print(json.dumps(known | {"part": part} | figures), flush=True)
        if "failed" in figures and device.type == "cuda" and not is_alive(device):
            return DEVICE_LOST
    return 0


def sum_params(subject: Subject) -> int:
    return subject.shape.body_params + subject.shape.head_params


def is_alive(device: torch.device) -> bool:
    """Whether the device still works in this process; after some faults every later call fails."""
    try:
        torch.zeros(1, device=device).add_(1)
        torch.cuda.synchronize(device)
    except RuntimeError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
