"""Sampled tokens per second of the engines against transformers' `generate`: same model, prompts, slots and threads.

    python benchmarks/rollout_speed.py                                     one table, under a minute on two cores
    python benchmarks/rollout_speed.py --rounds 5                          best of more rounds
    python benchmarks/rollout_speed.py --engines torch,vllm,generate       vLLM too, in a process of its own
    python benchmarks/rollout_speed.py --model smollm2-135m --requests 64 --slots 16 --engines torch,vllm

vLLM is that of this interpreter, or of the one that --vllm-python names. Engines are also timed taking new weights.
Requests are as RL makes them: groups of one prompt, and lengths with many short and few long ones (log-uniform).
`generate` runs a batch until its longest completion ends, and only tokens within a request's own length count, for
both. `generate` gets full batches of equally long prompts, so none of its time goes into padding them, and samples
without top-k or top-p; it need not report log-probs, which the engine does. Tokens per CPU second, with vLLM's process
counted, are what to compare where other programs keep the machine busy.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from scalerl.recipe.parts import RolloutSettings, VllmSettings
from scalerl.training.models.load import LoadedModel, load_model
from scalerl.training.rollout import ENGINES
from scalerl.training.types import LengthPlan, Problem, Request

TARGET = 3.0
"""Least speed relative to the faster of generate's two caches."""
PROMPT = 12
GROUP = 8
LENGTHS = (8, 96)
VOCABULARY = 64


def make_model(*, vocabulary: int = VOCABULARY, context: int = 256) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


def make_requests(count: int) -> list[Request]:
    rng = np.random.default_rng(0)
    problem = Problem(id="0", prompt="", answer="", task="benchmark")
    prompts = rng.integers(0, VOCABULARY, (-(-count // GROUP), PROMPT)).tolist()
    lengths = np.exp(rng.uniform(np.log(LENGTHS[0]), np.log(LENGTHS[1]), count)).round().astype(int).tolist()
    return [
        Request(
            group=str(number // GROUP),
            index=number % GROUP,
            problem=problem,
            prompt_tokens=tuple(prompts[number // GROUP]),
            seed=number,
            length=LengthPlan(answer_budget=length),
        )
        for number, length in enumerate(lengths)
    ]


def build_engine(name: str, model: Any, slots: int, python: str) -> Any:
    settings = RolloutSettings(slots=slots, context=PROMPT + LENGTHS[1], vllm=VllmSettings(python=python))
    loaded = LoadedModel(
        model=model,
        tokenizer=Any,  # pyright: ignore[reportArgumentType]
        stop_tokens=(),
        context=PROMPT + LENGTHS[1],
        device=model.device,
    )
    return ENGINES[name](loaded, settings, dtype=model.dtype, fp32_head=True)


def push_s(engine: Any, model: Any, count: int = 5) -> float:
    """Return the median time in which an idle engine takes new weights."""
    weights, times = {name: weight.detach() for name, weight in model.named_parameters()}, []
    for _ in range(count):
        start = time.perf_counter()
        engine.push_weights(weights, engine.version + 1)
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def run_engine(engine: Any, requests: list[Request]) -> tuple[int, float]:
    start = time.perf_counter()
    engine.submit(requests)
    num_tokens = 0
    while engine.num_pending:
        num_tokens += sum(len(completion) for completion in engine.poll())
    return num_tokens, time.perf_counter() - start


def cpu_s(engines: list[Any]) -> float:
    """Return the CPU time of this process and of vLLM's so far: on a busy machine it varies less than the clock."""
    ticks = 0
    for engine in engines:
        if hasattr(engine, "pid"):
            fields = Path(f"/proc/{engine.pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def run_generate(model: Any, requests: list[Request], slots: int, cache: str | None) -> tuple[int, float]:
    start = time.perf_counter()
    num_tokens = 0
    for first in range(0, len(requests), slots):
        batch = requests[first : first + slots]
        prompts = torch.tensor([request.prompt_tokens for request in batch], device=model.device)
        result = model.generate(
            inputs=prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=True,
            top_k=0,
            max_new_tokens=max(request.length.max_tokens for request in batch),
            cache_implementation=cache,
        )
        sampled = torch.as_tensor(result).shape[1] - PROMPT
        num_tokens += sum(min(request.length.max_tokens, sampled) for request in batch)
    return num_tokens, time.perf_counter() - start


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1024)
    parser.add_argument("--slots", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--engines", default="torch,generate", help="of torch, vllm and generate, with commas")
    parser.add_argument("--model", default="", help="a model's name or folder instead of a small random one")
    parser.add_argument("--vllm-python", default="", help="interpreter of an environment with vLLM")
    arguments = parser.parse_args()
    arguments.engines = arguments.engines.split(",")
    if unknown := set(arguments.engines) - {"torch", "vllm", "generate"}:
        parser.error(f"--engines has {min(unknown)}; choices: torch, vllm, generate")
    return arguments


def measure(
    runs: dict[str, Callable[[list[Request]], tuple[int, float]]],
    requests: list[Request],
    rounds: int,
    few: int,
    cpu: Callable[[], float],
) -> dict[str, tuple[int, float, float]]:
    """Return tokens, seconds and CPU seconds of the best round of each, after one with `few` requests as a warm-up."""
    best: dict[str, tuple[int, float, float]] = {}
    for number in range(-1, rounds):
        for name, run in runs.items():
            if number < 0:
                run(requests[:few])
                continue
            if number and "generate" in best and best[name][1] > 1.5 * best["generate"][1]:
                continue  # A cache that is far slower need not be measured twice.
            before = cpu()
            result = (*run(requests), cpu() - before)
            best[name] = min(best.get(name, result), result, key=lambda each: each[1])
    return best


def main() -> int:
    arguments = options()
    if arguments.model:
        dtype = torch.bfloat16 if arguments.device == "cuda" else torch.float32
        model = load_model(arguments.model, dtype=dtype, device=arguments.device).model
    else:
        model = make_model().to(arguments.device)
    requests = make_requests(arguments.requests)
    runs: dict[str, Callable[[list[Request]], tuple[int, float]]] = {}
    if "generate" in arguments.engines:
        runs["generate"] = lambda some: run_generate(model, some, arguments.slots, None)
        runs["generate, static cache"] = lambda some: run_generate(model, some, arguments.slots, "static")
    engines = {
        name: build_engine(name, model, arguments.slots, arguments.vllm_python)
        for name in ("torch", "vllm")
        if name in arguments.engines
    }
    for name, engine in engines.items():
        runs[f"{name} engine"] = lambda some, engine=engine: run_engine(engine, some)
    best = measure(runs, requests, arguments.rounds, arguments.slots // 8, lambda: cpu_s([*engines.values()]))
    pushes = {f"{name} engine": push_s(engine, model) for name, engine in engines.items()}
    for engine in engines.values():
        engine.close()

    parameters = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    mean = sum(request.length.max_tokens for request in requests) / len(requests)
    print(
        f"{parameters:.2f}M-parameter {type(model).__name__}, vocabulary {model.config.vocab_size}, "
        f"{arguments.requests} requests of {LENGTHS[0]} to {LENGTHS[1]} tokens (mean {mean:.0f}), {arguments.slots} at "
        f"a time, {torch.get_num_threads()} threads, best of {arguments.rounds}"
    )
    rates = {name: num_tokens / seconds for name, (num_tokens, seconds, _) in best.items()}
    peers = [rate for name, rate in rates.items() if name.startswith("generate")]
    peer = max(peers or rates.values())
    print(f"{'':<24}{'tokens':>10}{'seconds':>10}{'tokens/s':>12}{'ratio':>8}{'per CPU s':>12}{'push':>12}")
    for name, (num_tokens, seconds, cpu) in best.items():
        push = f"{1000 * pushes[name]:.1f} ms" if name in pushes else ""
        speed = f"{rates[name]:>12,.0f}{rates[name] / peer:>8.2f}{num_tokens / cpu:>12,.0f}"
        print(f"{name:<24}{num_tokens:>10,}{seconds:>10.2f}{speed}{push:>12}")
    if not peers or "torch engine" not in rates:
        return 0
    print(f"ratio to the faster generate: {rates['torch engine'] / peer:.2f} (least: {TARGET:.1f})")
    return 0 if rates["torch engine"] / peer >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
