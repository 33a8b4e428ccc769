"""The parts of benchmarks/gpu.py: a shape of model on a device, and what is measured with it, as one JSON line.

Started by gpu.py in a separate process, which may be killed: python benchmarks/gpu_parts.py OPTIONS-AS-JSON
"""

import contextlib
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.resources import files
from typing import Any

import numpy as np
import torch
import transformers
from gaps import Roles, device_figures, host_figures, traced
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

from scalerl.recipe.load import load_recipe
from scalerl.recipe.parts import RolloutSettings, VllmSettings
from scalerl.recipe.recipe import Recipe
from scalerl.training.loop.pipeline import Pipeline, StepDone
from scalerl.training.models.load import LoadedModel
from scalerl.training.models.shape import ModelShape, head_sizes, work_flops
from scalerl.training.rollout import ENGINES
from scalerl.training.rollout.fleet.fleet import Fleet
from scalerl.training.run.cluster.generators import make_engine
from scalerl.training.run.host import frozen_objects, limit_host_threads
from scalerl.training.run.learners import build_learner
from scalerl.training.run.memory import ModelSizes, generator_bytes, learner_bytes
from scalerl.training.tasks.curriculum import Curriculum, uniform
from scalerl.training.types import Batch, Completion, Group, LengthPlan, Problem, Request, derive_seed, derive_seeds

Figures = dict[str, Any]
PROBLEM = Problem(id="0", prompt="", answer="", task="benchmark")
SHORTEST = 8
"""Least of the mixed lengths, which are log-uniform from here to the end of the context."""
PER_GROUP = 8
NUM_PROBLEMS = 2000
MAX_LAG = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A shape of model and how much is measured with it."""

    config: Any
    """None means the embedded model."""
    slots: int
    context: int
    prompt: int
    """Prompt tokens if the cache is to be nearly full."""
    decoded: int
    """Tokens sampled after such a prompt."""
    short_prompt: int
    """Prompt tokens with mixed lengths, as in training."""
    step_tokens: int
    """Tokens per learner step."""
    pass_tokens: int
    sequence: int = 512
    """Tokens of a trained sequence, its prompt of one token included."""
    rounds: int = 2
    """Requests of mixed lengths per slot."""
    loop_slots: int | None = None
    """Slots beside the learner; None for all of them."""
    lora_rank: int = 0
    memory_share: float = 0.6
    """vLLM's share of the device."""

    @property
    def step_sequences(self) -> int:
        return max(self.step_tokens // self.sequence, 2)


def shape(
    family: type,
    hidden: int,
    layers: int,
    heads: int,
    kv_heads: int,
    inner: int,
    vocab: int,
    *,
    context: int = 2048,
    tied: bool = True,
) -> Any:
    return family(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=hidden // heads,
        max_position_embeddings=context,
        tie_word_embeddings=tied,
        architectures=[f"{family.__name__.removesuffix('Config')}ForCausalLM"],
        dtype="bfloat16",
    )


TEN, SMALL = shape(LlamaConfig, 384, 6, 6, 6, 1024, 64), shape(LlamaConfig, 576, 30, 9, 3, 1536, 49152)
MIDDLE = shape(Qwen2Config, 1536, 28, 12, 2, 8960, 151936)
THREE = shape(LlamaConfig, 3072, 28, 24, 8, 8192, 128256, context=16384)
EIGHT = shape(LlamaConfig, 4096, 32, 32, 8, 14336, 128256, context=16384, tied=False)
BASE = Case(
    config=SMALL,
    slots=512,
    context=512,
    prompt=384,
    decoded=128,
    short_prompt=128,
    step_tokens=131072,
    pass_tokens=65536,
    memory_share=0.4,
)
LARGE: dict[str, Any] = {
    **{"slots": 256, "context": 1024, "prompt": 768, "decoded": 256, "step_tokens": 32768, "pass_tokens": 8192},
    **{"loop_slots": 128, "memory_share": 0.6},
}
LONG: dict[str, Any] = LARGE | {
    **{"slots": 32, "context": 16384, "prompt": 14336, "short_prompt": 512, "pass_tokens": 16384, "sequence": 16384},
    **{"loop_slots": 8, "memory_share": 0.75},
}
TINY: dict[str, Any] = {"context": 64, "prompt": 16, "decoded": 48, "short_prompt": 16, "sequence": 128}
TEN_M: dict[str, Any] = {"slots": 1536, "context": 96, "prompt": 16, "decoded": 80, "short_prompt": 16}
# Llama-3.2-3B and Llama-3.1-8B. With the paper's lengths a context is 16k; full training of 8B needs more devices.
CASES = {
    "tiny": replace(BASE, config=None, step_tokens=65536, memory_share=0.6, **TINY),
    "10m": replace(BASE, config=TEN, pass_tokens=131072, memory_share=0.6, **TEN_M),
    "135m": BASE,
    "1.5b": replace(BASE, config=MIDDLE, step_tokens=65536, pass_tokens=16384),
    "3b": replace(BASE, config=THREE, **LARGE),
    "8b": replace(BASE, config=EIGHT, lora_rank=32, **LARGE),
    "3b-16k": replace(BASE, config=THREE, **LONG),
    "8b-16k": replace(BASE, config=EIGHT, lora_rank=32, **LONG),
}


def quick(case: Case) -> Case:
    """Return the case with small sizes, which only show that it runs."""
    small = {"slots": 4, "context": 24, "prompt": 8, "decoded": 16, "short_prompt": 8, "loop_slots": None}
    config = None if case.config is None else shape(LlamaConfig, 64, 2, 2, 1, 64, 64, tied=case.lora_rank == 0)
    return replace(case, config=config, **small, step_tokens=64, pass_tokens=64, sequence=16)


def now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class Subject:
    """A case on a device: its model and what several parts share."""

    def __init__(self, case: Case, device: torch.device, *, weights: str | None = None) -> None:
        self.case, self.device, self._weights = case, device, weights
        limit_host_threads(device)
        self.ceiling = ceilings(device)

    @cached_property
    def config(self) -> Any:
        return self.model(torch.float32).config if self.case.config is None else self.case.config

    @property
    def vocab(self) -> int:
        return self.config.vocab_size

    def model(self, dtype: torch.dtype) -> Any:
        """Return the model with random weights, or those of a folder."""
        torch.manual_seed(0)
        path = self._weights or (str(files("scalerl") / "assets" / "tiny-base") if self.case.config is None else None)
        if path is not None:
            model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="sdpa")
        else:
            with torch.device(self.device):
                model = AutoModelForCausalLM.from_config(self.case.config, dtype=dtype, attn_implementation="sdpa")
        made: Any = model
        return made.to(self.device).eval()

    @property
    def body_dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.device.type == "cuda" else torch.float32

    @property
    def master_dtype(self) -> torch.dtype:
        """What a run would load: FP32 weights to train, or under adapters those of files in bf16."""
        return self.body_dtype if self.case.lora_rank else torch.float32

    def engine(self, name: str, model: Any, slots: int, **vllm: Any) -> Any:
        """Return an engine as a run builds it."""
        case = self.case
        settings = RolloutSettings(
            slots=slots, context=case.context, vllm=VllmSettings(memory_share=case.memory_share, **vllm)
        )
        loaded = loaded_model(model, case.context)
        return ENGINES[name](loaded, settings, dtype=self.body_dtype, fp32_head=True)

    def recipe(self, *, slots: int | None = None, prompt: int | None = None, engine: str = "torch") -> Recipe:
        case = self.case
        prompt = prompt or case.short_prompt
        return load_recipe(
            "scalerl",
            [
                f"learner.micro_batch_tokens={case.pass_tokens}",
                f"model.lora.rank={case.lora_rank}",
                f"rollout.slots={slots or 1}",
                f"rollout.engine={engine}",
                f"rollout.vllm.memory_share={case.memory_share}",
                f"rollout.context={case.context}",
                f"rollout.max_prompt_tokens={prompt}",
                f"length.max_length={case.context - prompt}",
                # A length plan ends every completion, and all of them are to be trained on.
                *("filter.drop_truncated=false", "budget.steps=1", "length.name=none", "optimizer.warmup_steps=0"),
            ],
        )

    def requests(self, lengths: Sequence[int], *, prompt: int, per_prompt: int = 1) -> list[Request]:
        """Return requests with random prompts of that many tokens, each asking for that many tokens."""
        num_prompts = -(-len(lengths) // per_prompt)
        prompts = np.random.default_rng(0).integers(0, self.vocab, (num_prompts, prompt)).tolist()
        return [
            make_request(str(number), 0, prompts[number // per_prompt], length) for number, length in enumerate(lengths)
        ]

    def mixed_requests(self) -> list[Request]:
        """Return requests of mixed lengths, equal for every engine."""
        case = self.case
        lengths = mixed_lengths(np.random.default_rng(0), case, case.rounds * case.slots)
        return self.requests(lengths, prompt=case.short_prompt, per_prompt=PER_GROUP)


def loaded_model(model: Any, context: int) -> LoadedModel:
    """Return a model as engines take it; nothing here needs a tokenizer."""
    none: Any = None
    return LoadedModel(model=model, tokenizer=none, stop_tokens=(), context=context, device=model.device)


def mixed_lengths(rng: np.random.Generator, case: Case, count: int) -> list[int]:
    longest = min(case.context - case.short_prompt, 1024)
    return np.exp(rng.uniform(np.log(SHORTEST), np.log(longest), count)).round().astype(int).tolist()


def make_request(group: str, index: int, prompt: Sequence[int], length: int) -> Request:
    return Request(
        group=group,
        index=index,
        problem=PROBLEM,
        prompt_tokens=tuple(prompt),
        seed=derive_seed(group, index),
        length=LengthPlan(answer_budget=length),
    )


def group_requests(key: str, prompt: tuple[int, ...], plans: Sequence[LengthPlan]) -> list[Request]:
    """Return the requests of a group, made as a run makes them."""
    return [
        Request(group=key, index=index, problem=PROBLEM, prompt_tokens=prompt, seed=seed, length=plan)
        for index, (seed, plan) in enumerate(zip(derive_seeds(key, num=len(plans)), plans, strict=True))
    ]


def make_group(completions: Sequence[Completion]) -> Group:
    """Return a group whose first half is correct, so that no filter drops it."""
    key, num = completions[0].request.group, len(completions)
    correct = tuple(2 * i < num for i in range(num))
    rewards = tuple(1.0 if verdict else -1.0 for verdict in correct)
    return Group(key=key, problem=PROBLEM, completions=tuple(completions), correct=correct, rewards=rewards)


def make_batch(version: int, vocab: int, num: int, sequence: int) -> Batch:
    """Return groups of two with prompts of one token, so that every other token of a sequence is trained."""
    rng, length = np.random.default_rng(version), sequence - 1

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


# What the device can do ----------------------------------------------------------------------------------------------


def ceilings(device: torch.device) -> dict[str, float]:
    """Return bytes per second read, and FLOPs per second in bf16 (FP32 on a CPU)."""
    on_gpu = device.type == "cuda"
    size, dtype = (8192, torch.bfloat16) if on_gpu else (256, torch.float32)
    # Far larger than any cache; on a GPU so large that a launch takes a thousandth of it.
    source = torch.randn(2**30 if on_gpu else 2**20, device=device)
    target = torch.empty_like(source)
    read = max(
        source.nbytes / least_seconds(source.sum, device),
        source.nbytes / least_seconds(source.amax, device),
        2 * source.nbytes / least_seconds(lambda: target.copy_(source), device),
    )
    del source, target
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    matmul = 2 * size**3 / least_seconds(lambda: left @ right, device)
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    return {"read_bandwidth": read, "matmul": matmul}


def least_seconds(work: Callable[[], Any], device: torch.device, repeats: int = 12) -> float:
    times = []
    for _ in range(repeats + 2):
        start = now(device)
        work()
        times.append(now(device) - start)
    return min(times[2:])


def decode_limit_s(config: Any, slots: int, attended: float, ceiling: dict[str, float], *, item: int) -> float:
    """Return the least seconds of one token for every slot, at a mean context of `attended` tokens.

    limit = sum over body, attention and head of max(bytes / read bandwidth, FLOPs / matmul rate): each weight is read
    once, the head in FP32, and each slot's keys and values once. Logits need not go through memory.
    """
    shape = ModelShape.from_config(config)
    num_kv_heads, head_dim = head_sizes(config)
    cached = item * 2 * shape.layers * num_kv_heads * head_dim
    parts = (
        (item * shape.body_params, 2 * shape.body_params * slots),
        (cached * (attended - 1) * slots, 4 * shape.layers * shape.attention_width * attended * slots),
        (4 * shape.head_params, 2 * shape.head_params * slots),
    )
    return sum(max(num / ceiling["read_bandwidth"], flops / ceiling["matmul"]) for num, flops in parts)


# Sampling ------------------------------------------------------------------------------------------------------------


def sampling(subject: Subject, seconds: float, *, name: str) -> Figures:
    """Return the rates of full slots and of mixed lengths, the seconds of a push and the bytes in use."""
    case, model = subject.case, subject.model(subject.body_dtype)
    start = now(subject.device)
    engine = subject.engine(name, model, case.slots)
    try:
        # What is made once, graphs and kernels, is not measured.
        drained(engine, subject.requests([16] * case.slots, prompt=case.short_prompt, per_prompt=8))
        figures = {"start_s": now(subject.device) - start}
        figures |= full_slots(subject, engine, case.slots)
        figures |= mixed(subject, engine)
        weights = dict(model.named_parameters())
        engine.push_weights(weights, 1)
        start = now(subject.device)
        for version in range(2, 6):
            engine.push_weights(weights, version)
        figures["push_s"] = (now(subject.device) - start) / 4
        figures["used_gib"] = used_gib(subject.device)
        if name == "torch":
            source = sum(weight.nbytes for weight in weights.values())
            figures |= memory(subject, subject.recipe(slots=case.slots, prompt=case.prompt), ("generator",), source)
    finally:
        engine.close()
    return figures


def drained(engine: Any, requests: Sequence[Request]) -> list[Completion]:
    engine.submit(requests)
    completions: list[Completion] = []
    while engine.num_pending:
        completions += engine.poll()
    return completions


def full_slots(subject: Subject, engine: Any, slots: int) -> Figures:
    """Sample in all slots near the end of the context; timed from when all prompts are computed."""
    case = subject.case
    engine.submit(subject.requests([case.decoded] * slots, prompt=case.prompt))
    seen = []
    while engine.num_pending:
        engine.poll()
        seen.append((time.perf_counter(), engine.work))
    prefilled = seen[-1][1].prefilled
    (start, before), (end, after) = next(each for each in seen if each[1].prefilled == prefilled), seen[-1]
    if end == start:
        return {}
    decoded = after.decoded - before.decoded
    attended = (after.attended - before.attended) / decoded
    item = subject.body_dtype.itemsize
    limit_s = decode_limit_s(subject.config, slots, attended, subject.ceiling, item=item)
    rate = decoded / (end - start)
    return {"tokens_per_s": rate, "of_limit": rate * limit_s / slots, "attended": attended}


def mixed(subject: Subject, engine: Any) -> Figures:
    """Sample requests of mixed lengths, more than there are slots; `steady` ends when a slot stays empty."""
    requests = subject.mixed_requests()
    start, before = now(subject.device), engine.work.decoded
    steady: Figures = {}
    engine.submit(requests)
    while engine.num_pending:
        engine.poll()
        if engine.num_pending >= subject.case.slots:
            steady = {"steady_tokens_per_s": (engine.work.decoded - before) / (time.perf_counter() - start)}
    num_tokens = sum(request.length.max_tokens for request in requests)
    return {"mixed_tokens_per_s": num_tokens / (now(subject.device) - start), **steady}


def native(subject: Subject, seconds: float) -> Figures:
    """Measure vLLM by itself, in this process: its own sampling, with and without log-probs."""
    import tempfile

    from vllm import LLM, SamplingParams  # pyright: ignore

    case, figures = subject.case, {}
    with tempfile.TemporaryDirectory() as folder:
        subject.config.save_pretrained(folder)
        llm = LLM(
            model=folder,
            skip_tokenizer_init=True,
            load_format="dummy",
            dtype=str(subject.body_dtype).removeprefix("torch."),
            max_model_len=case.context,
            max_num_seqs=case.slots,
            gpu_memory_utilization=case.memory_share,
            generation_config="vllm",
            disable_log_stats=True,
        )
        requests = subject.mixed_requests()
        prompts: Any = [{"prompt_token_ids": list(request.prompt_tokens)} for request in requests]
        for name, logprobs in (("native_tokens_per_s", 0), ("native_no_logprobs", None)):
            params = [
                SamplingParams(
                    max_tokens=request.length.max_tokens,
                    ignore_eos=True,
                    detokenize=False,
                    logprobs=logprobs,
                    seed=request.seed % 2**31,
                )
                for request in requests
            ]
            llm.generate(prompts[:8], params[:8], use_tqdm=False)
            start = now(subject.device)
            outputs = llm.generate(prompts, params, use_tqdm=False)
            num = sum(len(output.outputs[0].token_ids) for output in outputs)
            figures[name] = num / (now(subject.device) - start)
    return figures


# Learning ------------------------------------------------------------------------------------------------------------


def learn(subject: Subject, seconds: float) -> Figures:
    """Train on packed sequences of one length, with every token trained."""
    recipe = subject.recipe()
    learner = build_learner(subject.model(subject.master_dtype), recipe)
    figures = full_steps(subject, learner, seconds)
    if subject.device.type == "cuda":
        figures |= device_figures(traced(lambda: full_step(subject, learner))[1], 1)
    # Held, as in a push.
    start = now(subject.device)
    pushed = learner.weights()
    return {
        **figures,
        "pushed_gib": sum(weight.nbytes for weight in pushed.values()) / 2**30,
        "merge_s": now(subject.device) - start,
        **memory(subject, as_trained(recipe, learner), ("learner",)),
    }


def full_steps(subject: Subject, learner: Any, seconds: float) -> Figures:
    """Return the rates of steps on sequences of one length."""
    case, until, times, flops = subject.case, time.perf_counter() + seconds, [], 0.0
    # The first step compiles what is left to compile.
    while len(times) < 6 and (len(times) < 2 or time.perf_counter() < until):
        taken_s, flops = full_step(subject, learner)
        times.append(taken_s)
    elapsed, tokens = statistics.median(times[1:]), case.step_sequences * case.sequence
    shape = ModelShape.from_config(subject.config)
    products = (4 if case.lora_rank else 6) * (shape.body_params + shape.head_params) * tokens
    return {
        "learner_tokens_per_s": tokens / elapsed,
        "learner_flops_per_s": flops / elapsed,
        "mfu": products / elapsed / subject.ceiling["matmul"],
        "mfu_attention": flops / elapsed / subject.ceiling["matmul"],
        "step_s": elapsed,
    }


def full_step(subject: Subject, learner: Any) -> tuple[float, float]:
    """Return the seconds and FLOPs of a step on sequences of one length."""
    case = subject.case
    batch = make_batch(learner.version, subject.vocab, case.step_sequences, case.sequence)
    start = now(subject.device)
    with torch.profiler.record_function("learner"):
        flops = learner.step(batch)["batch/flops"]
    return now(subject.device) - start, flops


def as_trained(recipe: Recipe, learner: Any) -> Recipe:
    """Return the recipe with what the learner decided about recomputing activations."""
    chosen = bool(getattr(learner.policy, "gradient_checkpointing", False))
    return recipe.model_copy(update={"learner": recipe.learner.model_copy(update={"gradient_checkpointing": chosen})})


def memory(subject: Subject, recipe: Recipe, roles: Sequence[str], others: int = 0) -> Figures:
    """Return the most memory that was allocated, and its share of what `scalerl train --check` says.

    `others` are bytes that no role of a run would have. The reserve is what is not allocated by torch.
    """
    if subject.device.type != "cuda":
        return {}
    sizes = ModelSizes.from_config(subject.config)
    estimates = {
        "learner": learner_bytes(recipe, sizes),
        "generator": generator_bytes(recipe, sizes, recipe.rollout.slots or 1),
    }
    wanted = sum(value for role in roles for part, value in estimates[role].items() if part != "reserve")
    peak = torch.cuda.max_memory_allocated(subject.device) - others
    return {
        "checkpointing": recipe.learner.gradient_checkpointing,
        "peak_gib": peak / 2**30,
        "estimate_gib": wanted / 2**30,
        "of_estimate": peak / wanted,
    }


# The loop ------------------------------------------------------------------------------------------------------------


class FirstHalf:
    """A grader that takes no time: see make_group."""

    def __init__(self) -> None:
        self._groups: list[Group] = []

    def submit(self, groups: Sequence[Sequence[Completion]]) -> None:
        self._groups += map(make_group, groups)

    def poll(self, *, wait: bool = False) -> list[Group]:
        done, self._groups = self._groups, []
        return done


def make_pipeline(case: Case, vocab: int, engine: Any, learner: Any, *, groups_per_batch: int) -> Pipeline:
    """Return PipelineRL-8 over random prompts, with mixed lengths."""
    rng = np.random.default_rng(0)
    prompts = [tuple(tokens) for tokens in rng.integers(0, vocab, (NUM_PROBLEMS, case.short_prompt)).tolist()]
    lengths = [mixed_lengths(rng, case, PER_GROUP) for _ in range(NUM_PROBLEMS)]
    plans = [[LengthPlan(answer_budget=length) for length in some] for some in lengths]

    def make_requests(issued: Any) -> list[Request]:
        number = int(issued.problem_id)
        return group_requests(issued.key, prompts[number], plans[number])

    return Pipeline(
        engine=engine,
        curriculum=Curriculum([f"{number:04}" for number in range(NUM_PROBLEMS)], seed=0, left_out=uniform),
        learner=learner,
        make_requests=make_requests,
        grading=FirstHalf(),
        groups_per_batch=groups_per_batch,
        max_lag=MAX_LAG,
    )


def run_loop(subject: Subject, seconds: float, *, name: str) -> Figures:
    """Run PipelineRL-8 on one device; prompts are random, lengths mixed. A process with vLLM is killed at the end."""
    case = subject.case
    slots = case.loop_slots or case.slots
    recipe = subject.recipe(slots=slots, engine=name)
    model = subject.model(subject.master_dtype)
    learner = build_learner(model, recipe)
    engine = make_engine(loaded_model(model, case.context), recipe.model, recipe.rollout)
    pipeline = make_pipeline(case, subject.vocab, engine, learner, groups_per_batch=max(slots // PER_GROUP // 4, 1))
    with frozen_objects(), contextlib.closing(engine):
        steps = pipeline.steps()
        # The first batches are asked for before the first step; a pass is a graph from the second time on.
        first = take(steps, 12, seconds)
        used_before = used_gib(subject.device)
        start, before = now(subject.device), engine.work
        done = take(steps, 50, 2 * seconds)
        elapsed, work = now(subject.device) - start, engine.work
        metrics = [dict(step.metrics) for step in done]
        learner_flops = sum(row["batch/flops"] for row in metrics)
        flops = learner_flops + work_flops(ModelShape.from_config(subject.config), before, work)
        decoded = work.decoded - before.decoded
        step_s = sum(step.timings.step_s for step in done)
        return {
            "loop_steps": len(done),
            "steps_per_s": len(done) / elapsed,
            "loop_tokens_per_s": decoded / elapsed,
            "loop_mfu": flops / elapsed / subject.ceiling["matmul"],
            "loop_learner_mfu": learner_flops / max(step_s, 1e-9) / subject.ceiling["matmul"],
            "loop_step_s": step_s / len(done),
            "loop_push_s": sum(step.timings.push_s for step in done) / len(done),
            "kl_first": dict(first[0].metrics)["loss/kl"],
            "kl": statistics.mean(row["loss/kl"] for row in metrics),
            "lag_max": max(lag for step in done for lag in step.batch.lags),
            "used_gib": used_gib(subject.device),
            "grown_gib": used_gib(subject.device) - used_before,
            **memory(
                subject, as_trained(recipe, learner), ("learner", "generator") if name == "torch" else ("learner",)
            ),
            **(after_a_kill(engine, steps) if name == "vllm" else {}),
        }


def gaps(subject: Subject, seconds: float) -> Figures:
    """Run PipelineRL-8 and account for every millisecond of a step, on the device and on the host (gaps.py).

    `of_parts` is the time of a step's tokens at the rates of engine and learner alone (all slots full, sequences of one
    length), measured before with the same two objects, over the time of the step.
    """
    case = subject.case
    slots = case.loop_slots or case.slots
    recipe, model = subject.recipe(slots=slots), subject.model(subject.master_dtype)
    learner = build_learner(model, recipe)
    engine = make_engine(loaded_model(model, case.context), recipe.model, recipe.rollout)
    with frozen_objects(), contextlib.closing(engine):
        drained(engine, subject.requests([16] * slots, prompt=case.short_prompt, per_prompt=PER_GROUP))
        alone = full_slots(subject, engine, slots) | full_steps(subject, learner, seconds)
        pipeline = make_pipeline(case, subject.vocab, engine, learner, groups_per_batch=max(slots // PER_GROUP // 4, 1))
        steps, roles = pipeline.steps(), Roles(engine, learner)
        # Sizes of passes recur, and are recorded as graphs the second time.
        take(steps, 80, seconds)
        start, before = now(subject.device), engine.work
        with roles.counted():
            done = take(steps, 60, seconds)
            elapsed = now(subject.device) - start
        decoded = engine.work.decoded - before.decoded
        flops = sum(step.metrics["batch/flops"] for step in done)
        parts_s = decoded / alone["tokens_per_s"] + flops / alone["learner_flops_per_s"]
        figures = {
            "engine_tokens_per_s": alone["tokens_per_s"],
            "learner_tokens_per_s": alone["learner_tokens_per_s"],
            "gaps_mfu": alone["mfu"],
            "steps_per_s": len(done) / elapsed,
            "sampled_per_step": decoded / len(done),
            "of_parts": parts_s / elapsed,
            **host_figures(done, elapsed, roles.waits_s),
        }
        if subject.device.type == "cuda":
            with roles.counted():
                seen, events = traced(lambda: take(steps, 6, seconds))
            figures |= device_figures(events, len(seen))
        else:
            figures |= {f"{role}_ms": 1e3 * spent / len(done) for role, spent in roles.calls_s.items()}
        if "engine_ms" not in figures:
            return figures
        busy = sum(figures.get(f"{role}_ms", 0.0) for role in ("engine", "learner", "push", "other"))
        return figures | {"idle_ms": figures["step_ms"] - busy, "idle": 1 - busy / figures["step_ms"]}


def after_a_kill(fleet: Fleet, steps: Iterator[StepDone]) -> Figures:
    """Kill the process with vLLM and take steps until the one that replaces it has sampled a whole batch."""
    start, pid = time.perf_counter(), fleet.pids[0]
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    done = take(steps, MAX_LAG + 2, 600.0)
    metrics = [dict(step.metrics) for step in done]
    return {
        "lost": len(fleet.losses),
        "steps_after_kill": len(done),
        "recovery_s": time.perf_counter() - start,
        "kl_after_kill": metrics[-1]["loss/kl"],
    }


def take(running: Iterator[StepDone], most: int, seconds: float) -> list[StepDone]:
    """Run that many steps, or those that begin within the time; at least two."""
    until, steps = time.perf_counter() + seconds, []
    while len(steps) < most and (len(steps) < 2 or time.perf_counter() < until):
        steps.append(next(running))
    return steps


PARTS: dict[str, Callable[[Subject, float], Figures]] = {
    "torch": partial(sampling, name="torch"),
    "vllm": partial(sampling, name="vllm"),
    "native": native,
    "learn": learn,
    "loop": partial(run_loop, name="torch"),
    "loop_vllm": partial(run_loop, name="vllm"),
    "gaps": gaps,
}


def used_gib(device: torch.device) -> float:
    """Return the memory of the device that is in use, by all processes."""
    if device.type != "cuda":
        return 0.0
    free, total = torch.cuda.mem_get_info(device)
    return (total - free) / 2**30


def measure(subject: Subject, part: str, seconds: float) -> Figures:
    """Return the figures of a part, or why there are none."""
    start = time.perf_counter()
    try:
        figures = PARTS[part](subject, seconds)
    except Exception as error:
        lines = str(error).strip().splitlines()
        figures = {"failed": f"{type(error).__name__}: {lines[0] if lines else ''}"}
    return figures | {"took_s": time.perf_counter() - start}


def main(options: dict[str, Any]) -> None:
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    device = torch.device(options["device"] or ("cuda" if torch.cuda.is_available() else "cpu"))
    case = CASES[options["shape"]]
    subject = Subject(quick(case) if options["quick"] else case, device, weights=options["weights"])
    known = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "shape": options["shape"],
        **subject.ceiling,
    }
    print(json.dumps(known | measure(subject, options["part"], options["seconds"])), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
