"""From a batch of graded groups to the tensors of a step: what is trained on, with which weight, in which passes.

    Batch -> facts a completion -> effective_batch -> token weights, once for the whole batch -> micro-batches

Only kept completions need a pass, and only their trained tokens a logit. A micro-batch is a rectangle of whole rows,
padded on the right: under causal attention nothing that counts sees the padding, so there is no mask and attention
takes its fastest path. Rows of like length share a rectangle, cut where that costs least (see `_cuts`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scalerl.rl.filters import EffectiveBatch, num_nonfinite, trainable_tokens, trained_tokens
from scalerl.types import Batch, Completion

PASS_TOKENS = 128
"""What a pass costs beyond its tokens, in tokens: launching it. About 100 for a million parameters on a CPU core and
1,000 for a billion on a GPU, where passes are cut by the budget long before this counts."""

PADDING = 0
"""Any token of the vocabulary would do."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MicroBatch:
    """One forward and backward pass. `ids` is rows x width; the other tensors have one entry a trained token."""

    ids: Tensor
    """Prompt and completion without its last token, which nothing follows; padded on the right."""
    place: Tensor
    """Where in the flattened rows the token is predicted: one before where it stands."""
    targets: Tensor
    generator_log_probs: Tensor
    advantages: Tensor
    weights: Tensor
    completion_of_token: Tensor
    temperature: float
    """At which all of its completions were sampled."""
    lengths: tuple[int, ...]
    """Of its rows, without padding."""

    def to(self, device: torch.device) -> "MicroBatch":
        names = ("ids", "place", "targets", "generator_log_probs", "advantages", "weights", "completion_of_token")
        moved = {name: getattr(self, name).to(device, non_blocking=True) for name in names}
        return MicroBatch(**moved, temperature=self.temperature, lengths=self.lengths)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """A batch ready to be trained on, and the facts its metrics need."""

    micro_batches: tuple[MicroBatch, ...]
    """Longest rows first, so that a step that does not fit into memory fails at once; empty if nothing is kept."""
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
        _rectangle(completions, rows, np.cumsum(lengths) - lengths, trained, per_token)
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
    """Which of the kept completions share a pass: of one temperature, of like length, within the budget of tokens."""
    temperature = np.array([completions[i].request.temperature for i in kept], dtype=np.float64)
    length = np.array([_num_inputs(completions[i]) for i in kept], dtype=np.int64)
    order = np.lexsort((kept, length, temperature))
    parts: list[tuple[int, NDArray[np.int64]]] = []
    for value in np.unique(temperature):
        rows = order[temperature[order] == value]
        for start, end in _cuts(length[rows], budget):
            parts.append((int(length[rows[end - 1]]), kept[rows[start:end]]))
    # Sorted is stable, so equal widths keep their order.
    return [rows for _, rows in sorted(parts, key=lambda part: -part[0])]


def _cuts(lengths: NDArray[np.int64], budget: int) -> list[tuple[int, int]]:
    """Cut rising lengths into rectangles so that padded tokens + PASS_TOKENS x passes is least.

    best(j) = min over i of best(i) + (j - i) x length_j + PASS_TOKENS, with (j - i) x length_j <= budget. A row longer
    than the budget has a pass of its own: no sequence is ever split.
    """
    best = np.zeros(len(lengths) + 1, dtype=np.int64)
    starts = np.zeros(len(lengths) + 1, dtype=np.int64)
    for end in range(1, len(lengths) + 1):
        width = lengths[end - 1]
        first = max(0, end - max(int(budget // max(width, 1)), 1))
        cost = best[first:end] + np.arange(end - first, 0, -1) * width
        choice = int(cost.argmin())
        best[end], starts[end] = cost[choice] + PASS_TOKENS, first + choice
    cuts: list[tuple[int, int]] = []
    end = len(lengths)
    while end:
        cuts.append((int(starts[end]), end))
        end = int(starts[end])
    return cuts[::-1]


def _rectangle(
    completions: Sequence[Completion],
    rows: NDArray[np.int64],
    token_start: NDArray[np.int64],
    trained: Tensor,
    per_token: dict[str, Tensor],
) -> MicroBatch:
    """`token_start` says where in the flat vectors of the batch each completion begins."""
    lengths = tuple(_num_inputs(completions[row]) for row in rows)
    width = max(lengths)
    ids = np.full((len(rows), width), PADDING, dtype=np.int64)
    token, place, targets = [], [], []
    for i, row in enumerate(rows):
        completion, prompt = completions[row], completions[row].request.prompt_tokens
        assert prompt, f"completion {completion.request.key} has no prompt, so nothing predicts its first token"
        ids[i, : len(prompt)] = prompt
        ids[i, len(prompt) : lengths[i]] = completion.tokens[:-1]
        of_completion = np.flatnonzero(trained.numpy()[token_start[row] : token_start[row] + len(completion)])
        token.append(token_start[row] + of_completion)
        place.append(i * width + len(prompt) - 1 + of_completion)
        targets.append(completion.tokens[of_completion])
    chosen = torch.from_numpy(np.concatenate(token))
    return MicroBatch(
        ids=torch.from_numpy(ids),
        place=torch.from_numpy(np.concatenate(place)),
        targets=torch.from_numpy(np.concatenate(targets).astype(np.int64)),
        **{name: vector[chosen] for name, vector in per_token.items()},
        temperature=completions[rows[0]].request.temperature,
        lengths=lengths,
    )


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
        "batch/trained_tokens": float(sum(micro.targets.numel() for micro in micro_batches)),
    }
    if len(completions):
        interrupted = [completion.interrupted_at is not None for completion in completions]
        facts["rollout/length_mean"] = float(lengths.mean())
        facts["rollout/length_max"] = float(lengths.max())
        facts["rollout/interrupted_frac"] = float(np.mean(interrupted))
    if rewards.numel():
        facts["reward/mean"] = float(rewards.double().mean())
        facts["reward/correct_frac"] = sum(verdict is True for verdict in correct) / rewards.numel()
    if micro_batches:
        used = sum(sum(micro.lengths) for micro in micro_batches)
        facts["batch/padding_frac"] = 1 - used / sum(micro.ids.numel() for micro in micro_batches)
    return facts
