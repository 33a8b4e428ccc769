"""The parts of benchmarks/gpu.py, each a function from a Subject to figures; one JSON line per part.

Started by gpu.py in a separate process, which may be killed: python benchmarks/gpu_parts.py OPTIONS-AS-JSON
"""

import copy
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import transformers
from gpu import DEVICE_LOST
from gpu_cases import CASES, Case, Subject, make_batch, now, quick
from gpu_limits import decode_limits
from gpu_loop import loop
from gpu_peers import run_continuous, run_generate, run_static

from scalerl.models.shape import training_flops
from scalerl.types import Request

Figures = dict[str, Any]


def sample(subject: Subject, seconds: float) -> Figures:
    """Sample in all slots, near the end of the context; timed after all prompts are prefilled."""
    case = subject.case
    figures = sample_slots(subject, case.slots, seconds)
    if case.more_slots is not None:
        more = sample_slots(subject, case.more_slots, seconds)
        figures |= {f"{name}_{case.more_slots}": value for name, value in more.items()}
    return figures


def sample_slots(subject: Subject, slots: int, seconds: float) -> Figures:
    case, engine = subject.case, subject.engine(slots)
    length = case.decoded or case.context - case.prompt
    best: Figures = {}
    until = time.perf_counter() + seconds
    if case.decoded is not None:
        # What is made once, graphs and kernels, from prompts that take no time.
        engine.submit(subject.requests([4] * slots, prompt=case.short_prompt, per_prompt=slots))
        while engine.num_pending:
            engine.poll()
    for number in range(1 if case.decoded is None else 0, 5):
        engine.submit(subject.requests([length] * slots, prompt=case.prompt, per_prompt=case.per_prompt))
        engine.poll()
        # No waiting for the device here: the second chunk is under way and is counted as soon as it is collected.
        # From the return of one poll to that of another is the time of the chunks collected in between.
        start, before = time.perf_counter(), engine.work
        while engine.num_pending:
            engine.poll()
        elapsed, decoded = time.perf_counter() - start, engine.work.decoded - before.decoded
        attended = (engine.work.attended - before.attended) / decoded
        # The first round makes what is made once, unless that is done already.
        if number != 1 and decoded / elapsed > best.get("tokens_per_s", 0.0):
            item = 2 if subject.device.type == "cuda" else 4
            limits = decode_limits(subject.model.config, slots, attended, subject.ceiling, item=item)
            step_s = slots * elapsed / decoded
            best = {
                "tokens_per_s": decoded / elapsed,
                "limit": slots / limits.limit_s,
                "of_limit": limits.limit_s / step_s,
                "of_bound": limits.bound_s / step_s,
                "of_copy_limit": limits.copy_limit_s / step_s,
                "attended": attended,
            }
        if best and (case.decoded is not None or time.perf_counter() > until):
            break
    engine.close()
    return best


def learn(subject: Subject, seconds: float) -> Figures:
    """Train on packed sequences of one length, with every token trained; long ones with and without checkpointing."""
    if subject.case.thinking is None:
        return learn_steps(subject, subject.learner, seconds)
    figures: Figures = {}
    for checkpointing in ("false", "true"):
        subject.forget_learner()
        free_memory(subject.device)
        try:
            learner = subject.make_learner(f"learner.gradient_checkpointing={checkpointing}")
            part = learn_steps(subject, learner, seconds)
            del learner
        except torch.OutOfMemoryError as error:
            part = {"failed": str(error).splitlines()[0]}
        if subject.device.type == "cuda":
            part["peak_gib"] = torch.cuda.max_memory_allocated(subject.device) / 2**30
        name = "checkpointed" if checkpointing == "true" else "plain"
        figures |= {f"{name}_{key}": value for key, value in part.items()}
    free_memory(subject.device)
    best = max(("plain", "checkpointed"), key=lambda name: figures.get(f"{name}_learner_tokens_per_s", 0.0))
    kept = ("learner_tokens_per_s", "mfu", "mfu_attention")
    return {key: figures[f"{best}_{key}"] for key in kept} | figures


def learn_steps(subject: Subject, learner: Any, seconds: float) -> Figures:
    case, times = subject.case, []
    num, until = max(case.step_tokens // case.sequence, 2), time.perf_counter() + seconds
    # The first step compiles what is left to compile.
    while len(times) < 6 and (len(times) < 2 or time.perf_counter() < until):
        batch = make_batch(learner.version, subject.vocab, num, case.sequence)
        start = now(subject.device)
        learner.step(batch)
        times.append(now(subject.device) - start)
    shape, elapsed, tokens = subject.shape, statistics.median(times[1:]), num * case.sequence
    mfu = 6 * (shape.body_params + shape.head_params) * tokens / elapsed / subject.ceiling["matmul"]
    flops = training_flops(shape, [case.sequence] * num, tokens)
    return {
        "learner_tokens_per_s": tokens / elapsed,
        "mfu": mfu,
        "mfu_attention": flops / elapsed / subject.ceiling["matmul"],
        "step_s": elapsed,
    }


def free_memory(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


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
    free_memory(subject.device)
    try:
        figures = PARTS[part](subject, seconds)
    except Exception as error:  # Whatever it was: the other parts are still to be measured.
        lines = str(error).strip().splitlines()
        return {"failed": f"{type(error).__name__}: {lines[0] if lines else ''}", "took_s": time.perf_counter() - start}
    subject.figures[part] = figures
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
