"""What benchmarks/gpu.py measures: shapes of models, requests and batches for them, and what the device could do."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files
from typing import Any

import numpy as np
import torch
from gpu_limits import ceilings, now
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

from scalerl.models.shape import ModelShape
from scalerl.rollout.torch.engine import TorchEngine
from scalerl.run.host import limit_host_threads
from scalerl.types import Batch, Completion, Group, LengthPlan, Problem, Request, derive_seed

__all__ = ["now"]

PROBLEM = Problem(id="0", prompt="", answer="", task="benchmark")
SHORTEST = 8
"""Least of the mixed lengths, which are log-uniform from here to the end of the context."""
PER_GROUP = 8
"""Completions per prompt with mixed lengths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A shape of model and how much is measured with it."""

    config: Any
    """None means the embedded model."""
    slots: int
    context: int
    prompt: int
    """Prompt tokens if the cache is to be nearly full."""
    short_prompt: int
    """Prompt tokens with mixed lengths, as in training."""
    step_tokens: int
    """Tokens per learner step."""
    pass_tokens: int
    sequence: int = 512
    rounds: int = 2
    """Requests of mixed lengths per slot."""
    thinking: tuple[int, int] | None = None
    """Least and largest thinking budget of a completion, which is interrupted there; None for mixed lengths."""
    answer: int = 0
    """Tokens of the answer after thinking."""
    decoded: int | None = None
    """Tokens sampled per slot in `sample`; None for as many as the context has room for."""
    per_prompt: int = 1
    """Requests with the same prompt in `sample`, to save time before it is measured; each slot has its own cache."""
    more_slots: int | None = None
    """A second number of slots for `sample`."""
    batch_groups: int | None = None
    """Groups per step of the loop; None for a quarter of what the slots hold."""

    @property
    def groups_per_batch(self) -> int:
        return self.batch_groups or max(self.slots // PER_GROUP // 4, 1)


def shape(
    family: type, hidden: int, layers: int, heads: int, kv_heads: int, inner: int, vocab: int, context: int = 2048
) -> Any:
    return family(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=context,
        tie_word_embeddings=True,
    )


TEN, SMALL = shape(LlamaConfig, 384, 6, 6, 6, 1024, 64), shape(LlamaConfig, 576, 30, 9, 3, 1536, 49152)
LARGE = shape(Qwen2Config, 1536, 28, 12, 2, 8960, 151936)
LONG = shape(Qwen2Config, 1536, 28, 12, 2, 8960, 151936, context=16384)
TINY_LONG = shape(Qwen2Config, 16, 1, 2, 1, 16, 64, context=64)
CASES = {
    "tiny": Case(
        config=None,
        slots=512,
        context=64,
        prompt=16,
        short_prompt=16,
        step_tokens=65536,
        pass_tokens=65536,
        sequence=128,
    ),
    "10m": Case(config=TEN, slots=1536, context=96, prompt=16, short_prompt=16, step_tokens=131072, pass_tokens=131072),
    "135m": Case(
        config=SMALL, slots=512, context=512, prompt=384, short_prompt=128, step_tokens=131072, pass_tokens=65536
    ),
    "1.5b": Case(
        config=LARGE,
        slots=512,
        context=512,
        prompt=384,
        short_prompt=128,
        step_tokens=65536,
        pass_tokens=16384,
        rounds=1,
    ),
    # The paper's lengths: 10k to 12k of thinking, 2k of answer.
    "1.5b-16k": Case(
        config=LONG,
        slots=64,
        context=16384,
        prompt=14336,
        short_prompt=512,
        step_tokens=4 * 13824,
        pass_tokens=16384,
        sequence=13824,
        thinking=(10240, 12288),
        answer=2048,
        decoded=192,
        per_prompt=4,
        more_slots=128,
        batch_groups=1,
    ),
}


def quick(case: Case) -> Case:
    """Return the case with small sizes, which only show that it runs."""
    small = {"slots": 4, "context": 24, "prompt": 8, "short_prompt": 8, "step_tokens": 64, "pass_tokens": 64}
    if case.thinking is None:
        return replace(case, **small, sequence=16)
    lengths = {"thinking": (4, 6), "answer": 2, "decoded": 8, "more_slots": 8, "batch_groups": 1}
    return replace(case, config=TINY_LONG, **small, **lengths, sequence=16)


class Subject:
    """A case on a device: its model and whatever several parts share."""

    def __init__(self, case: Case, device: torch.device, *, weights: str | None = None) -> None:
        self.case, self.device = case, device
        limit_host_threads(device)
        self.model = make_model(case, weights, device)
        self.ceiling = ceilings(device)
        self.figures: dict[str, dict[str, Any]] = {}
        """Figures of the parts measured so far."""
        if device.type == "cuda":
            torch.cuda.empty_cache()

    @cached_property
    def learner(self) -> Any:
        """Return the learner, which trains the model in place."""
        return self.make_learner()

    def make_learner(self, *settings: str) -> Any:
        from scalerl.config import load_recipe
        from scalerl.run.parts import build_learner

        # A length plan ends every completion, and all of them are to be trained on.
        case = self.case
        common = [f"learner.micro_batch_tokens={case.pass_tokens}", "filter.drop_truncated=false", "budget.steps=1"]
        if case.context >= 16384:
            # With the memory of the cache, the learner decides whether it must recompute activations.
            common += [f"rollout.slots={case.slots}", f"rollout.context={case.context}"]
        return build_learner(self.model, load_recipe("scalerl", [*common, *settings]))

    def forget_learner(self) -> None:
        """Free the learner's moments and gradients, which sampling does not need."""
        self.__dict__.pop("learner", None)

    @property
    def shape(self) -> ModelShape:
        return ModelShape.from_config(self.model.config)

    @property
    def vocab(self) -> int:
        return self.model.config.vocab_size

    def engine(self, slots: int | None = None) -> TorchEngine:
        dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        slots = slots or self.case.slots
        return TorchEngine(self.model, slots=slots, max_length=self.case.context, stop_tokens=(), dtype=dtype)

    def requests(self, lengths: Sequence[int], *, prompt: int, per_prompt: int = 1) -> list[Request]:
        """Return requests with random prompts of that many tokens, each asking for that many tokens."""
        num_prompts = -(-len(lengths) // per_prompt)
        prompts = np.random.default_rng(0).integers(0, self.vocab, (num_prompts, prompt)).tolist()
        return [
            make_request(str(number), 0, prompts[number // per_prompt], length) for number, length in enumerate(lengths)
        ]

    @cached_property
    def mixed_requests(self) -> list[Request]:
        """Return requests of mixed lengths, equal for our engine and every peer."""
        case = self.case
        lengths = mixed_lengths(np.random.default_rng(0), case, case.rounds * case.slots)
        return self.requests(lengths, prompt=case.short_prompt, per_prompt=PER_GROUP)


def make_model(case: Case, weights: str | None, device: torch.device) -> Any:
    """Return the model in FP32, for the learner's master weights; the engine makes its own bf16 copy."""
    torch.manual_seed(0)
    model: Any
    if weights or case.config is None:
        path = weights or str(files("scalerl") / "assets" / "tiny-base")
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa")
    else:
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(case.config, dtype=torch.float32, attn_implementation="sdpa")
    model.generation_config.eos_token_id = None  # Lengths are given, not found.
    model.generation_config.pad_token_id = 0
    return model.to(device).eval()


def mixed_lengths(rng: np.random.Generator, case: Case, count: int) -> list[int]:
    longest = case.context - case.short_prompt
    return np.exp(rng.uniform(np.log(SHORTEST), np.log(longest), count)).round().astype(int).tolist()


def make_request(group: str, index: int, prompt: Sequence[int], length: int | LengthPlan) -> Request:
    return Request(
        group=group,
        index=index,
        problem=PROBLEM,
        prompt_tokens=tuple(prompt),
        seed=derive_seed(group, index),
        length=length if isinstance(length, LengthPlan) else LengthPlan(answer_budget=length),
    )


def make_group(completions: Sequence[Completion]) -> Group:
    """Return a group whose first half is correct, so that no filter drops it."""
    key, num = completions[0].request.group, len(completions)
    correct = tuple(2 * i < num for i in range(num))
    rewards = tuple(1.0 if verdict else -1.0 for verdict in correct)
    return Group(key=key, problem=PROBLEM, completions=tuple(completions), correct=correct, rewards=rewards)


def make_batch(version: int, vocab: int, num: int, length: int) -> Batch:
    """Return groups of two with prompts of one token, so that every token is trained."""
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
