"""From a batch of graded groups to the tensors of a step: what is trained on, with which weight, in which passes.

    Batch -> facts a completion -> effective_batch -> token weights, once for the whole batch -> micro-batches

Only kept completions need a pass, and only their trained tokens a logit. A micro-batch is one row of whole sequences,
packed without padding (packed_attention.py), up to the budget of tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scalerl.learner.packed_attention import Packing, pack
from scalerl.rl.filters import EffectiveBatch, num_nonfinite, trainable_tokens, trained_tokens
from scalerl.types import Batch, Completion


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pass:
    """What the model is asked about a packed row: the log-probs of `targets`."""

    ids: Tensor
    """Of each sequence, prompt and completion without its last token, which nothing follows."""
    packing: Packing
    place: Tensor
    """Where in the row each target is predicted: one before where it stands."""
    targets: Tensor
    temperature: float
    """At which all of its completions were sampled."""

    def to(self, device: torch.device) -> "Pass":
        moved = {name: getattr(self, name).to(device, non_blocking=True) for name in ("ids", "place", "targets")}
        return replace(self, packing=self.packing.to(device), **moved)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MicroBatch:
    """One forward and backward pass; the tensors have an entry a trained token."""

    asked: Pass
    generator_log_probs: Tensor
    advantages: Tensor
    weights: Tensor
    completion_of_token: Tensor
    lengths: tuple[int, ...]
    """Of its sequences."""

    def to(self, device: torch.device) -> "MicroBatch":
        """With what the loss takes on the device; what is asked is for the model to send."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        moved = {name: part.to(device, non_blocking=True) for name, part in parts.items() if isinstance(part, Tensor)}
        return replace(self, **moved)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """A batch ready to be trained on, and the facts its metrics need."""

    micro_batches: tuple[MicroBatch, ...]
    """Longest sequences first, so that a step that does not fit into memory fails at once; empty if nothing is kept."""
    effective: EffectiveBatch
    lag: Tensor
    """Of every sampled token of the batch, kept or not."""
    num_nonfinite: int
    facts: dict[str, float]
    """Metrics of the batch that need no model."""


def prepare(
    batch: Batch,
    *,
    effective: Callable[..., EffectiveBatch],
    weigh: Callable[[Tensor, Tensor, Tensor], Tensor],
    micro_batch_tokens: int,
) -> Prepared:
    """Filter and weigh a batch as a whole, then cut it.

    `effective` is rl.filters.effective_batch and `weigh` one of rl.weights, both with the recipe's settings bound.
    """
    completions = [completion for group in batch.groups for completion in group.completions]
    sizes = np.array([len(group.completions) for group in batch.groups], dtype=np.int64)
    group = np.repeat(np.arange(len(batch.groups)), sizes)
    lengths = np.array([len(completion) for completion in completions], dtype=np.int64)
    correct = [verdict for group in batch.groups for verdict in group.correct]
    rewards = torch.tensor([reward for group in batch.groups for reward in group.rewards])
    has_verdict = torch.tensor([verdict is not None for verdict in correct], dtype=torch.bool)

    sampled = torch.from_numpy(~_joined(completions, "forced", np.bool_))
    generator_log_probs = torch.from_numpy(_joined(completions, "log_probs", np.float32))
    completion_of_token = torch.from_numpy(np.repeat(np.arange(len(completions)), lengths))
    trainable = trainable_tokens(sampled, generator_log_probs)

    kept = effective(
        torch.from_numpy(group),
        torch.tensor([float(verdict is True) for verdict in correct]),
        has_verdict,
        rewards,
        torch.tensor([completion.truncated for completion in completions], dtype=torch.bool),
        torch.zeros(len(completions), dtype=torch.long).index_add(0, completion_of_token, trainable.long()),
    )
    trained = trained_tokens(trainable, completion_of_token, kept.kept)
    weights = weigh(torch.from_numpy(group)[completion_of_token], completion_of_token, trained)
    per_token = {
        "generator_log_probs": generator_log_probs,
        "advantages": kept.advantages[completion_of_token],
        "weights": weights,
        "completion_of_token": completion_of_token,
    }
    micro_batches = tuple(
        _packed(completions, rows, np.cumsum(lengths) - lengths, trained, per_token)
        for rows in split(completions, np.flatnonzero(kept.kept.numpy()), micro_batch_tokens)
    )
    lag = batch.version - torch.from_numpy(_joined(completions, "versions", np.int32))[sampled]
    return Prepared(
        micro_batches=micro_batches,
        effective=kept,
        lag=lag,
        num_nonfinite=num_nonfinite(sampled, generator_log_probs),
        facts=_facts(completions, correct, rewards[has_verdict], lengths, micro_batches),
    )


def split(completions: Sequence[Completion], kept: NDArray[np.int64], budget: int) -> list[NDArray[np.int64]]:
    """Which of the kept completions share a pass: of one temperature, of like length, within the budget of tokens.

    The longest come first. One that is longer than the budget has a pass of its own: no sequence is ever split.
    """
    temperature = np.array([completions[i].request.temperature for i in kept], dtype=np.float64)
    length = np.array([_num_inputs(completions[i]) for i in kept], dtype=np.int64)
    order = np.lexsort((kept, -length, temperature))
    parts: list[NDArray[np.int64]] = []
    for value in np.unique(temperature):
        rows = order[temperature[order] == value]
        ends = np.cumsum(length[rows])
        start, spent = 0, 0
        while start < len(rows):
            end = max(int(np.searchsorted(ends, spent + budget, side="right")), start + 1)
            parts.append(kept[rows[start:end]])
            start, spent = end, int(ends[end - 1])
    # Sorted is stable, so passes with an equally long first sequence keep their order.
    return sorted(parts, key=lambda part: -_num_inputs(completions[part[0]]))


def _packed(
    completions: Sequence[Completion],
    rows: NDArray[np.int64],
    token_start: NDArray[np.int64],
    trained: Tensor,
    per_token: dict[str, Tensor],
) -> MicroBatch:
    """`token_start` says where in the flat vectors of the batch each completion begins."""
    chosen = [completions[row] for row in rows]
    num_prompt, num_tokens = _lengths_of(chosen)
    lengths = num_prompt + num_tokens - 1
    # Where the batch has the tokens of these completions, and where in the row each of them is predicted.
    within = np.arange(num_tokens.sum()) - np.repeat(np.cumsum(num_tokens) - num_tokens, num_tokens)
    token = np.repeat(token_start[rows], num_tokens) + within
    place = np.repeat(np.cumsum(lengths) - lengths + num_prompt - 1, num_tokens) + within
    kept = trained.numpy()[token]
    token = torch.from_numpy(token[kept])
    return MicroBatch(
        asked=Pass(
            ids=torch.from_numpy(_inputs(chosen)),
            packing=pack(lengths),
            place=torch.from_numpy(place[kept]),
            targets=torch.from_numpy(_joined(chosen, "tokens", np.int32)[kept].astype(np.int64)),
            temperature=chosen[0].request.temperature,
        ),
        **{name: vector[token] for name, vector in per_token.items()},
        lengths=tuple(lengths.tolist()),
    )


def _lengths_of(completions: Sequence[Completion]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Tokens of each prompt and of each completion."""
    pairs = [(len(completion.request.prompt_tokens), len(completion)) for completion in completions]
    num_prompt, num_tokens = np.array(pairs, dtype=np.int64).T
    if not num_prompt.all():
        key = completions[int(num_prompt.argmin())].request.key
        raise AssertionError(f"completion {key} has no prompt, so nothing predicts its first token")
    return num_prompt, num_tokens


def _inputs(completions: Sequence[Completion]) -> NDArray[np.int64]:
    """Prompt and completion of each, without its last token."""
    # The completions of a group have one prompt.
    prompts: dict[tuple[int, ...], NDArray[np.int64]] = {}
    parts: list[NDArray] = []
    for completion in completions:
        prompt = completion.request.prompt_tokens
        if prompt not in prompts:
            prompts[prompt] = np.array(prompt, dtype=np.int64)
        parts += (prompts[prompt], completion.tokens[:-1])
    return np.concatenate(parts, dtype=np.int64)


def _num_inputs(completion: Completion) -> int:
    return len(completion.request.prompt_tokens) + len(completion) - 1


def _joined(completions: Sequence[Completion], name: str, dtype: type[np.generic]) -> NDArray:
    return np.concatenate([np.zeros(0, dtype=dtype), *(getattr(completion, name) for completion in completions)])


def _facts(
    completions: Sequence[Completion],
    correct: Sequence[bool | None],
    rewards: Tensor,
    lengths: NDArray[np.int64],
    micro_batches: Sequence[MicroBatch],
) -> dict[str, float]:
    """A mean over nothing is left out rather than invented, as in rl.metrics."""
    facts = {
        "batch/micro_batches": float(len(micro_batches)),
        "batch/trained_tokens": float(sum(micro.asked.targets.numel() for micro in micro_batches)),
    }
    if len(completions):
        interrupted = [completion.interrupted_at is not None for completion in completions]
        facts["rollout/length_mean"] = float(lengths.mean())
        facts["rollout/length_max"] = float(lengths.max())
        facts["rollout/interrupted_frac"] = float(np.mean(interrupted))
    if rewards.numel():
        facts["reward/mean"] = float(rewards.double().mean())
        facts["reward/correct_frac"] = sum(verdict is True for verdict in correct) / rewards.numel()
    return facts
