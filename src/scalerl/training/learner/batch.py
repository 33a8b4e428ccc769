"""Turn a batch of graded groups into the tensors of a step.

    Batch -> Rollout -> algorithm: kept completions and token weights, once for the whole batch -> micro-batches

Only kept completions need a forward pass, and only their trained tokens need logits. A micro-batch is one row of whole
sequences, packed without padding (packed_attention.py), up to a budget of tokens. Completions of one prompt share it if
that saves time (share.py). With several ranks, each rank filters and weighs the whole batch and packs its own share.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from scalerl.training.learner.late import moved
from scalerl.training.learner.packed_attention import Packing, pack
from scalerl.training.learner.share import Rows, Sizes, ranges
from scalerl.training.rl.algorithm import Algorithm, Rollout, TokenWeights, WeightedRollout
from scalerl.training.rl.credit import Turns
from scalerl.training.rl.filters import EffectiveBatch, num_nonfinite, trainable_tokens
from scalerl.training.types import Batch, Completion, Group


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForwardInputs:
    """A packed row of sequences, and the targets: the tokens whose log-probs are computed."""

    ids: Tensor
    """Prompt and completion of each sequence, without the last token, which predicts nothing, and without tokens that
    it shares with an earlier sequence."""
    packing: Packing
    place: Tensor
    """Index in the row at which each target is predicted: that of the token before it."""
    targets: Tensor
    temperature: float
    """The temperature at which all completions of the row were sampled."""
    experts: Tensor | None = None
    """The experts to which the engine routed each token of the row, if routing is replayed."""

    @classmethod
    def blank(cls, packing: Packing, num_targets: int | None = None) -> "ForwardInputs":
        """Return a row of zeros in which the first `num_targets` tokens, by default all, predict a target."""
        ids = torch.zeros_like(packing.positions)
        place = torch.arange(len(ids))[:num_targets]
        return cls(ids=ids, packing=packing, place=place, targets=ids[:num_targets], temperature=1.0)

    def to(self, device: torch.device) -> "ForwardInputs":
        return replace(moved(self, device), packing=moved(self.packing, device))


Scored = tuple[Tensor, Tensor]
"""The log-prob of each target, and the entropy of the distribution from which it was sampled."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MicroBatch:
    """The inputs of one forward and backward pass. The tensors have one entry per trained token."""

    inputs: ForwardInputs
    generator_log_probs: Tensor
    completion_of_token: Tensor
    """Number of the sequence of each token. Ratios over several tokens never span two branches."""
    weights: TokenWeights
    completions: tuple[Completion, ...]
    """The sequences of the row, in order."""
    trained: NDArray[np.bool_]
    """Which of the sequences' tokens are trained: the targets of the row."""
    token: NDArray[np.int64]
    """Index of each target among all tokens of the batch."""

    def to(self, device: torch.device) -> "MicroBatch":
        """Return the micro-batch with its vectors on a device; the inputs stay on the host."""
        return replace(moved(self, device), weights=moved(self.weights, device))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedBatch:
    """A batch that is ready for training, with the values for its metrics."""

    micro_batches: tuple[MicroBatch, ...]
    """Micro-batches with the longest sequences first, so that a step that does not fit in memory fails early; empty if
    nothing is kept."""
    num_passes: int
    """The largest number of micro-batches of any rank."""
    lengths: Rows
    """Tokens of every kept sequence on all ranks. Sharing is as if one pass took all of them, so that FLOPs do not
    depend on the split into passes."""
    shared: Rows
    """Number of first tokens of each kept sequence that it shares with another one."""
    completions: tuple[Completion, ...]
    """Every kept sequence on all ranks."""
    effective: EffectiveBatch
    lag: Tensor
    """Lag of every sampled token of the batch, kept or not."""
    num_nonfinite: int
    facts: dict[str, float]
    """Metrics of the batch that do not need the model."""


def prepare(
    batch: Batch,
    *,
    algorithm: Algorithm,
    micro_batch_tokens: int,
    share_from: int | None = 0,
    rank: int = 0,
    num_ranks: int = 1,
    critic: Tensor | None = None,
) -> PreparedBatch:
    """Apply the algorithm to the whole batch, then split the batch, or one rank's share of it, into micro-batches.

    In passes of more than `share_from` tokens, completions share the pass of their prompt if that saves time; None
    means never. `critic` has the critic's value of every token of the batch.
    """
    completions = _completions(batch)
    sequences, owner = sequences_of(batch)
    sizes = Sizes.of(sequences)
    forced = _joined((sequence.forced for sequence in sequences), np.bool_)
    sampled = torch.from_numpy(~forced)
    rollout = replace(_rollout(batch, sequences, owner, sampled, sizes), critic=critic)
    made = algorithm(rollout)
    rows = np.flatnonzero(made.effective.kept.numpy()[owner])
    sizes = sizes.sharing(sequences, rows, num_ranks, budget=micro_batch_tokens, share_from=share_from)
    # The passes of every rank.
    passes = [sizes.split(share, micro_batch_tokens) for share in sizes.assign(rows, num_ranks)]
    shared = sizes.prefixes(rows)[1]
    versions = _joined((sequence.versions for sequence in sequences), np.int32)
    return PreparedBatch(
        micro_batches=tuple(_packed(sequences, sizes, part, rollout, made) for part in passes[rank]),
        num_passes=max(map(len, passes)),
        lengths=sizes.length[rows] - shared,
        shared=shared,
        completions=tuple(sequences[row] for row in rows.tolist()),
        effective=made.effective,
        lag=batch.version - torch.from_numpy(versions)[sampled],
        num_nonfinite=num_nonfinite(sampled, rollout.generator_log_probs),
        facts={
            "batch/micro_batches": float(sum(map(len, passes))),
            "batch/trained_tokens": float(made.trained.sum()),
            **_facts(completions, batch.groups, rollout.rewards[rollout.has_verdict]),
            **made.metrics,
        },
    )


def sequences_of(batch: Batch) -> tuple[list[Completion], NDArray[np.int64]]:
    """Return the sequences to train on, including branches of conversations, and the index of each one's completion."""
    parts = [completion.sequences for completion in _completions(batch)]
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    return _flat(parts), owner


def _completions(batch: Batch) -> list[Completion]:
    return _flat(group.completions for group in batch.groups)


def _flat(parts: Iterable[Iterable[Any]]) -> list[Any]:
    return list(itertools.chain.from_iterable(parts))


def _rollout(
    batch: Batch, sequences: Sequence[Completion], owner: NDArray[np.int64], sampled: Tensor, sizes: Sizes
) -> Rollout:
    groups = batch.groups
    group = np.repeat(np.arange(len(groups)), [len(each.completions) for each in groups])
    values = _flat(each.values for each in groups)
    verdicts = _flat(each.correct for each in groups)
    rewards = _flat(each.rewards for each in groups)
    log_probs = torch.from_numpy(_joined((sequence.log_probs for sequence in sequences), np.float32))
    return Rollout(
        group=torch.from_numpy(group),
        value=torch.tensor([value or 0.0 for value in values]),
        correct=torch.tensor([verdict is True for verdict in verdicts], dtype=torch.bool),
        has_verdict=torch.tensor([value is not None for value in values], dtype=torch.bool),
        rewards=torch.tensor(rewards),
        truncated=torch.tensor([completion.truncated for completion in _completions(batch)], dtype=torch.bool),
        completion_of_token=torch.from_numpy(np.repeat(owner, sizes.tokens)),
        generator_log_probs=log_probs,
        trainable=trainable_tokens(sampled, log_probs),
        version=batch.version,
        turns=_turns(sequences, group[owner], sizes),
    )


def _turns(completions: Sequence[Completion], group: NDArray[np.int64], sizes: Sizes) -> Turns | None:
    """Return the turns of conversations; None if there are no conversations.

    The state before a turn is identified by the last observation, or by the prompt before the first turn: the true
    state of an environment is unknown.
    """
    if all(len(completion.turns) <= 1 and not completion.branches for completion in completions):
        return None
    of_token = np.full(int(sizes.tokens.sum()), -1)
    states = list[int]()
    numbers: dict[tuple[int, object], int] = {}
    first = 0
    for number, completion in zip(group.tolist(), completions, strict=True):
        end: int | None = None
        for start, stop in completion.turns or ((0, len(completion)),):
            read = completion.request.prompt_tokens if end is None else completion.tokens[end:start].tobytes()
            of_token[first + start : first + stop] = len(states)
            states.append(numbers.setdefault((number, read), len(numbers)))
            end = stop
        first += len(completion)
    return Turns(of_token=torch.from_numpy(of_token), state=torch.tensor(states))


def _packed(
    completions: Sequence[Completion], sizes: Sizes, rows: Rows, rollout: Rollout, made: WeightedRollout
) -> MicroBatch:
    """Build the micro-batch of the completions at `rows`; the flat vectors of `made` cover all tokens of the batch."""
    chosen = tuple(completions[row] for row in rows.tolist())
    num_tokens = sizes.tokens[rows]
    # Index of each token in the batch's flat vectors.
    token = ranges((np.cumsum(sizes.tokens) - sizes.tokens)[rows], num_tokens)
    trained = made.trained.numpy()[token]
    token = token[trained]
    index = torch.from_numpy(token)
    return MicroBatch(
        inputs=forward_inputs(chosen, sizes, rows, trained),
        completions=chosen,
        trained=trained,
        token=token,
        generator_log_probs=rollout.generator_log_probs.index_select(0, index),
        completion_of_token=torch.from_numpy(np.repeat(rows, num_tokens)[trained]),
        weights=made.weights.map(lambda vector: vector.index_select(0, index)),
    )


def forward_inputs(chosen: Sequence[Completion], sizes: Sizes, rows: Rows, wanted: NDArray[np.bool_]) -> ForwardInputs:
    """Pack completions into one row; `rows` are their indices in `sizes`, and `wanted` marks the targets."""
    parents, shared = sizes.prefixes(rows)
    num_tokens = sizes.tokens[rows]
    lengths = sizes.length[rows] - shared
    # Index in the row at which each token is predicted.
    place = ranges(np.cumsum(lengths) - num_tokens, num_tokens)
    targets = _joined((completion.tokens for completion in chosen), np.int32)[wanted]
    return ForwardInputs(
        ids=torch.from_numpy(_inputs(chosen, shared)),
        packing=pack(lengths, parents, shared),
        place=torch.from_numpy(place[wanted]),
        targets=torch.from_numpy(targets.astype(np.int64)),
        temperature=chosen[0].request.temperature,
        experts=_experts(chosen, shared),
    )


def _experts(completions: Sequence[Completion], shared: Rows) -> Tensor | None:
    """Return the experts of every token of the row; None unless all completions have them."""
    parts = [
        completion.experts[num:]
        for completion, num in zip(completions, shared.tolist(), strict=True)
        if completion.experts is not None
    ]
    return torch.from_numpy(np.concatenate(parts)) if len(parts) == len(completions) else None


def _inputs(completions: Sequence[Completion], shared: Rows) -> NDArray[np.int64]:
    """Return prompts and completions as one vector, without last tokens and without shared tokens."""
    parts: list[ArrayLike] = []
    for completion, num in zip(completions, shared.tolist(), strict=True):
        parts += completion.request.prompt_tokens[num:], completion.tokens[:-1]
    return np.concatenate(parts, dtype=np.int64)


def _joined(parts: Iterable[NDArray], dtype: type[np.generic]) -> NDArray:
    return np.concatenate([np.zeros(0, dtype=dtype), *parts])


def _facts(completions: Sequence[Completion], groups: Sequence[Group], rewards: Tensor) -> dict[str, float]:
    """Return metrics that do not need the model; means of empty sets are left out, as in rl.metrics."""
    facts: dict[str, float] = {}
    if len(completions):
        interrupted = [completion.interrupted_at is not None for completion in completions]
        lengths = [completion.num_written for completion in completions]
        facts["rollout/length_mean"] = float(np.mean(lengths))
        facts["rollout/length_max"] = float(max(lengths))
        facts["rollout/interrupted_frac"] = float(np.mean(interrupted))
    if rewards.numel():
        facts["reward/mean"] = float(rewards.double().mean())
        facts["reward/correct_frac"] = sum(group.num_correct for group in groups) / rewards.numel()
    for name in dict.fromkeys(_flat(group.scores for group in groups)):
        scores = _flat(group.scores.get(name, ()) for group in groups)
        known = [score for score in scores if score is not None]
        if known:
            facts[f"score/{name}"] = float(np.mean(known))
    return facts
