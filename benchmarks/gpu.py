"""Sampling, learning and the whole loop on a GPU, each against what the device could do.

    python benchmarks/gpu.py                                 every shape, one table; minutes on an H200
    python benchmarks/gpu.py --shape 10m --parts sample      one shape, one part
    python benchmarks/gpu.py --shape smollm --smollm FOLDER  real weights instead of random ones
    python benchmarks/gpu.py --shape tiny --quick            a smoke test, on a CPU too

Ceilings are measured first: bytes copied and bf16 products a second. A decode step cannot take less than the sum over
its parts (weights, filled cache, head, logits) of max(bytes / bandwidth, FLOPs / rate); an FP32 head is 4 bytes a
parameter, logits are written and read once. MFU = 6 x matrix parameters, head included, x tokens / rate: packed
sequences of 512 tokens, all trained, bf16 body, FP32 head, no credit for what is computed twice. Idle is the share of
the loop's wall time in which no kernel runs. On mixed lengths (log-uniform) only tokens within a request's own length
count.
"""

import argparse
import copy
import datetime
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

import numpy as np
import torch
import transformers
from gpu_peers import now, run_continuous, run_generate
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

from scalerl.rollout.torch_engine import TorchEngine
from scalerl.train.compute import ModelShape
from scalerl.types import Batch, Completion, Group, LengthPlan, Problem, Request, derive_seed

PARTS = ("sample", "learn", "loop", "mixed")
SEQUENCE = 512
PROBLEM = Problem(id="0", prompt="", answer="", task="benchmark")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A shape of model and how much of it is measured."""

    config: Any
    """None is the embedded model."""
    slots: int
    context: int
    prompt: int
    step_tokens: int
    """Tokens of a learner's step."""
    pass_tokens: int


def shape(family: type, hidden: int, layers: int, heads: int, kv_heads: int, inner: int, vocab: int) -> Any:
    return family(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )


SMALL, TEN = shape(LlamaConfig, 576, 30, 9, 3, 1536, 49152), shape(LlamaConfig, 384, 6, 6, 6, 1024, 64)
LARGE = shape(Qwen2Config, 1536, 28, 12, 2, 8960, 151936)
CASES = {
    "tiny": Case(config=None, slots=512, context=64, prompt=16, step_tokens=65536, pass_tokens=65536),
    "10m": Case(config=TEN, slots=1536, context=96, prompt=16, step_tokens=131072, pass_tokens=65536),
    "smollm": Case(config=SMALL, slots=512, context=512, prompt=384, step_tokens=131072, pass_tokens=32768),
    "qwen": Case(config=LARGE, slots=512, context=512, prompt=384, step_tokens=65536, pass_tokens=16384),
}
QUICK = {"slots": 8, "context": 40, "prompt": 8, "step_tokens": 256, "pass_tokens": 256}


def ceilings(device: torch.device) -> dict[str, float]:
    """Bytes a second of a copy, read and written, and FLOPs a second of a bf16 product (FP32 on a CPU)."""
    on_gpu = device.type == "cuda"
    size, dtype = (8192, torch.bfloat16) if on_gpu else (512, torch.float32)
    source = torch.randn(2**29 if on_gpu else 2**22, device=device)
    target = torch.empty_like(source)
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    copied = median_seconds(lambda: target.copy_(source), device)
    multiplied = median_seconds(lambda: left @ right, device)
    return {"bandwidth": 2 * source.nbytes / copied, "matmul": 2 * size**3 / multiplied}


def median_seconds(work: Callable[[], Any], device: torch.device, repeats: int = 10) -> float:
    times = []
    for number in range(repeats + 2):
        start = now(device)
        work()
        if number > 1:
            times.append(now(device) - start)
    return statistics.median(times)


def make_model(case: Case, folder: str | None, device: torch.device) -> Any:
    """FP32, as the learner's masters are; the engine makes its own bf16 copy."""
    torch.manual_seed(0)
    model: Any
    if folder or case.config is None:
        path = folder or str(files("scalerl") / "assets" / "tiny-base")
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa")
    else:
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(case.config, dtype=torch.float32, attn_implementation="sdpa")
    model.generation_config.eos_token_id = None  # Lengths are given, not found.
    model.generation_config.pad_token_id = 0
    return model.to(device).eval()


def make_request(group: str, index: int, prompt: Sequence[int], length: int) -> Request:
    return Request(
        group=group,
        index=index,
        problem=PROBLEM,
        prompt_tokens=tuple(prompt),
        seed=derive_seed(group, index),
        length=LengthPlan(answer_budget=length),
    )


def make_requests(case: Case, vocab: int, lengths: Sequence[int]) -> list[Request]:
    prompts = np.random.default_rng(0).integers(0, vocab, (len(lengths), case.prompt)).tolist()
    pairs = zip(prompts, lengths, strict=True)
    return [make_request(str(number), 0, prompt, length) for number, (prompt, length) in enumerate(pairs)]


def make_engine(model: Any, case: Case) -> TorchEngine:
    dtype = torch.bfloat16 if model.device.type == "cuda" else torch.float32
    return TorchEngine(model, slots=case.slots, max_length=case.context, stop_tokens=(), dtype=dtype)


def decode(model: Any, case: Case, ceiling: dict[str, float]) -> dict[str, float]:
    """All slots at once, each from a full prompt to the end of its context; timed once every prompt is in."""
    engine, device = make_engine(model, case), model.device
    best: dict[str, float] = {}
    for number in range(3):
        # The first round makes what is made once, graphs of every bucket included.
        lengths = [case.context - case.prompt] * case.slots
        engine.submit(make_requests(case, model.config.vocab_size, lengths))
        engine.poll()
        start, before = now(device), engine.work
        while engine.num_pending:
            engine.poll()
        seconds, decoded = now(device) - start, engine.work.decoded - before.decoded
        attended = (engine.work.attended - before.attended) / decoded
        limit = case.slots / decode_limit(model, case.slots, attended, ceiling)
        if number and decoded / seconds > best.get("tokens_per_s", 0.0):
            best = {"tokens_per_s": decoded / seconds, "limit": limit, "of_limit": decoded / seconds / limit}
    engine.close()
    return best


def decode_limit(model: Any, slots: int, attended: float, ceiling: dict[str, float]) -> float:
    """Least seconds of one token for every slot; see the top."""
    config, shape = model.config, ModelShape.from_config(model.config)
    on_gpu = model.device.type == "cuda"
    item = 2 if on_gpu else 4
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    cached = 2 * shape.layers * config.num_key_value_heads * size
    parts = (
        (item * shape.body_params, 2 * shape.body_params * slots),
        (item * cached * attended * slots, 4 * shape.layers * shape.attention_width * attended * slots),
        (4 * shape.head_params, 2 * shape.head_params * slots),
        (8 * config.vocab_size * slots, 0),
    )
    return sum(max(moved / ceiling["bandwidth"], flops / ceiling["matmul"]) for moved, flops in parts)


def mixed(model: Any, case: Case, *, rounds: int) -> dict[str, float]:
    """Requests of mixed lengths through our engine and through what transformers has."""
    rng = np.random.default_rng(0)
    longest = case.context - case.prompt
    lengths = np.exp(rng.uniform(np.log(min(8, longest)), np.log(longest), rounds * case.slots)).round().astype(int)
    requests = make_requests(case, model.config.vocab_size, lengths.tolist())
    total = int(lengths.sum())
    engine = make_engine(model, case)
    peer = copy.deepcopy(model).to(torch.bfloat16) if model.device.type == "cuda" else model
    found = {}
    runs: dict[str, Callable[[], float]] = {
        "engine": lambda: drain(engine, requests, model.device),
        "generate": lambda: run_generate(peer, requests, case.slots),
    }
    if model.device.type == "cuda":
        runs["continuous"] = lambda: run_continuous(peer, requests)
    drain(engine, requests, model.device)
    for name, work in runs.items():
        try:
            found[f"mixed_{name}_tokens_per_s"] = total / work()
        except Exception as error:  # A peer that does not run here is not compared with, and the table says so.
            print(f"  {name} failed: {str(error).splitlines()[0] if str(error) else type(error).__name__}", flush=True)
    engine.close()
    peers = [rate for name, rate in found.items() if "engine" not in name]
    return found | ({"ratio": found["mixed_engine_tokens_per_s"] / max(peers)} if peers else {})


def drain(engine: TorchEngine, requests: Sequence[Request], device: torch.device) -> float:
    start = now(device)
    engine.submit(requests)
    while engine.num_pending:
        engine.poll()
    return now(device) - start


def make_learner(model: Any, case: Case) -> Any:
    from scalerl.config import load_recipe
    from scalerl.train.step import TorchLearner

    settings = [f"learner.micro_batch_tokens={case.pass_tokens}", "budget.steps=1"]
    return TorchLearner.from_recipe(model, load_recipe("scalerl", settings))


def make_group(completions: Sequence[Completion]) -> Group:
    """The first half is right, so that no filter drops it."""
    key, num = completions[0].request.group, len(completions)
    correct = tuple(2 * i < num for i in range(num))
    rewards = tuple(1.0 if verdict else -1.0 for verdict in correct)
    return Group(key=key, problem=PROBLEM, completions=tuple(completions), correct=correct, rewards=rewards)


def make_batch(version: int, vocab: int, num: int, length: int) -> Batch:
    """Groups of two; a prompt is one token, so that every token is trained."""
    rng = np.random.default_rng(version)

    def completion(group: int, index: int) -> Completion:
        return Completion(
            request=make_request(f"0/{group}", index, [1], length),
            tokens=rng.integers(0, vocab, length).astype(np.int32),
            log_probs=np.full(length, -np.log(vocab), dtype=np.float32),
            versions=np.full(length, version, dtype=np.int32),
            forced=np.zeros(length, dtype=np.bool_),
            finish="stop",
        )

    groups = [make_group([completion(g, i) for i in range(2)]) for g in range(num // 2)]
    return Batch(version=version, groups=groups)


def learn(model: Any, case: Case, ceiling: dict[str, float], *, steps: int) -> dict[str, float]:
    length = min(SEQUENCE, model.config.max_position_embeddings)
    num = max(case.step_tokens // length, 2)
    learner, times = make_learner(model, case), []
    for version in range(steps + 1):
        batch = make_batch(version, model.config.vocab_size, num, length)
        start = now(model.device)
        learner.step(batch)
        if version:
            times.append(now(model.device) - start)
    shape, seconds = ModelShape.from_config(model.config), statistics.median(times)
    tokens = num * length
    mfu = 6 * (shape.body_params + shape.head_params) * tokens / seconds / ceiling["matmul"]
    return {"learner_tokens_per_s": tokens / seconds, "mfu": mfu}


class FirstHalf:
    """A grader that takes no time: see make_group."""

    def __init__(self) -> None:
        self._groups: list[Group] = []

    def submit(self, completions: Sequence[Completion]) -> None:
        # A budget that ends a completion truncates it, and truncated ones are not trained on.
        self._groups.append(make_group([replace(one, finish="stop") for one in completions]))

    def poll(self, *, wait: bool = False) -> list[Group]:
        done, self._groups = self._groups, []
        return done


def loop(model: Any, case: Case, *, steps: int) -> dict[str, float]:
    """PipelineRL-8 with our engine and learner on one device; prompts are random, lengths log-uniform."""
    from scalerl.tasks.curriculum import Curriculum, uniform
    from scalerl.train.pipeline import Pipeline

    per_group, longest, vocab = 8, case.context - case.prompt, model.config.vocab_size

    def requests(issued: Any) -> list[Request]:
        rng = np.random.default_rng(int(issued.problem_id))
        prompt = rng.integers(0, vocab, case.prompt).tolist()
        lengths = np.exp(rng.uniform(np.log(8), np.log(longest), per_group)).astype(int).tolist()
        return [make_request(issued.key, index, prompt, length) for index, length in enumerate(lengths)]

    engine = make_engine(model, case)
    pipeline = Pipeline(
        engine=engine,
        curriculum=Curriculum([f"{number:04}" for number in range(2000)], seed=0, retires=uniform),
        learner=make_learner(model, case),
        make_requests=requests,
        grading=FirstHalf(),
        groups_per_batch=max(case.slots // per_group // 4, 2),
        max_lag=8,
    )
    running = pipeline.steps()
    for _ in range(10):
        next(running)
    start, before = now(model.device), engine.work.decoded
    with kernels(model.device) as busy:
        for _ in range(steps):
            next(running)
        seconds = now(model.device) - start
    decoded = engine.work.decoded - before
    engine.close()
    row = {"steps_per_s": steps / seconds, "loop_tokens_per_s": decoded / seconds}
    return row | ({"idle": 1 - busy[0] / seconds} if busy else {})


@contextmanager
def kernels(device: torch.device) -> Iterator[list[float]]:
    """Afterwards, the seconds in which some kernel or copy ran; empty on a CPU."""
    busy: list[float] = []
    if device.type != "cuda":
        yield busy
        return
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        yield busy
    results: Any = profile.profiler
    spans = sorted(
        (event.start_ns(), event.start_ns() + event.duration_ns())
        for event in results.kineto_results.events()
        if event.device_type().name == "CUDA"
    )
    total, end = 0, 0
    for first, last in spans:
        total += max(last - max(first, end), 0)
        end = max(end, last)
    busy.append(total / 1e9)


def measure(name: str, case: Case, arguments: argparse.Namespace, ceiling: dict[str, float]) -> dict[str, float]:
    device = torch.device(arguments.device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    model = make_model(case, arguments.smollm if name == "smollm" else None, device)
    steps = 2 if arguments.quick else 4
    parts: dict[str, Callable[[], dict[str, float]]] = {
        "sample": lambda: decode(model, case, ceiling),
        "learn": lambda: learn(model, case, ceiling, steps=steps),
        "loop": lambda: loop(model, case, steps=3 * steps),
        "mixed": lambda: mixed(model, case, rounds=1 if arguments.quick else 2),
    }
    row: dict[str, float] = {"parameters": float(sum(p.numel() for p in model.parameters()))}
    for part in arguments.parts:
        start = time.perf_counter()
        row |= parts[part]()
        print(f"  {name} {part}: {time.perf_counter() - start:.1f} s", flush=True)
    if device.type == "cuda":
        row["peak_gib"] = torch.cuda.max_memory_allocated(device) / 2**30
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(CASES), nargs="+", default=list(CASES))
    parser.add_argument("--parts", choices=PARTS, nargs="+", default=PARTS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--smollm", metavar="FOLDER", help="SmolLM2-135M's weights; random ones unless given")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--json", metavar="FILE", help="write all figures there too")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    ceiling = ceilings(device)
    about = {
        "date": datetime.date.today().isoformat(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    rates = f"{ceiling['bandwidth'] / 1e12:.3g} TB/s, {ceiling['matmul'] / 1e12:.3g} TFLOP/s"
    print(", ".join(f"{key} {value}" for key, value in about.items()), f": {rates}", flush=True)
    rows: dict[str, dict[str, float]] = {}
    for name in arguments.shape:
        case = replace(CASES[name], **QUICK) if arguments.quick else CASES[name]
        rows[name] = measure(name, case, arguments, ceiling)
        print(f"{name}: " + ", ".join(f"{key} {value:,.4g}" for key, value in rows[name].items()), flush=True)
        if device.type == "cuda":
            torch.cuda.empty_cache()
        if arguments.json:
            with open(arguments.json, "w") as file:
                json.dump(about | ceiling | {"shapes": rows}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
