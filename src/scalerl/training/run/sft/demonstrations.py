"""Encode demonstrations and plan the batches of each step.

Only the model's own tokens have a loss: prompts and the text of environments are context. A batch has a fixed number
of tokens, filled in a shuffled order, epoch after epoch. The order depends only on the seed, so a resumed run continues
with the next batch.
"""

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import cast

import numpy as np

from scalerl.errors import TaskError
from scalerl.recipe.parts import SftSettings
from scalerl.training.environments.build import observer
from scalerl.training.environments.protocol import Step
from scalerl.training.loop.requests import Text
from scalerl.training.models.load import turn_end
from scalerl.training.run.sft.cleaning import Removed
from scalerl.training.tasks.task import Demonstration, Task
from scalerl.training.types import Completion, LengthPlan, Problem, Request, derive_seed

LARGEST_BATCH_TOKENS = 2_000_000
"""The paper's batch of SFT (appendix A.3)."""
EPOCHS = 4.0
_BATCHES_PER_EPOCH = 8
_HELDOUT_SHARE = 0.1


_PROBLEM = Problem(id="demonstration", prompt="", answer="", task="sft")
_LENGTH = LengthPlan(answer_budget=1)


def imitated(prompt: Sequence[int], tokens: Sequence[int], forced: Sequence[bool]) -> Completion:
    """Return a demonstration as a sampled completion; its forced tokens are not imitated."""
    request = Request(
        group="sft", index=0, problem=_PROBLEM, prompt_tokens=tuple(map(int, prompt)), seed=0, length=_LENGTH
    )
    zeros = np.zeros(len(tokens))
    return Completion(
        request=request,
        tokens=np.asarray(tokens, np.int32),
        log_probs=zeros.astype(np.float32),
        versions=zeros.astype(np.int32),
        forced=np.asarray(forced, np.bool_),
        finish="stop",
    )


def num_inputs(example: Completion) -> int:
    """Return the number of tokens in a pass: all but the last, which predicts nothing."""
    return len(example.request.prompt_tokens) + len(example) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """Training and held-out examples, and the demonstrations that were removed."""

    training: Sequence[Completion]
    heldout: Sequence[Completion]
    num_too_long: int = 0
    removed: tuple[Removed, ...] = ()
    """One entry per step of cleaning, and one for length."""

    @property
    def content_hash(self) -> str:
        """A hash of all training and held-out tokens."""
        digest = hashlib.sha256()
        for part in (self.training, self.heldout):
            digest.update(f"{len(part)};".encode())
            for example in part:
                digest.update(f"{example.request.prompt_tokens},{len(example)};".encode())
                digest.update(example.tokens.tobytes() + example.forced.tobytes())
        return digest.hexdigest()[:16]


def draw(task: Task, num: int, seed: int) -> Sequence[Demonstration]:
    """Draw demonstrations of a task; a task with a fixed number of them may return fewer."""
    if task.demonstrations is None:
        raise TaskError(
            f'the task "{task.name}" has no demonstrations to learn from (for a file, set demonstration_field)'
        )
    drawn = task.demonstrations(max(2, num), seed)
    if len(drawn) < 2:
        raise TaskError(f'the task "{task.name}" has {len(drawn)} demonstrations; at least two are needed')
    return drawn


def encode(drawn: Sequence[Demonstration], task: Task, text: Text, *, num_heldout: int, max_tokens: float) -> Examples:
    """Encode demonstrations, drop those that are too long, and hold out the first of the rest."""
    prompts = text.encode_prompts([item.problem.asked for item in drawn], task.prompt)
    completions = text.encode_all([item.completion for item in drawn])
    end = _end_of_turn(task, text)
    # A template need not support conversations unless a demonstration is one.
    has_conversations = any(item.earlier for item in drawn)
    observe = observer(task, text) if has_conversations else _observe_nothing
    examples = [
        _example(prompt, item, [*completion, end], text=text, observe=observe, end=end)
        for prompt, item, completion in zip(prompts, drawn, completions, strict=True)
    ]
    # A pass has one token less than an example.
    kept = [example for example in examples if num_inputs(example) < max_tokens]
    if len(kept) < 2:
        shortest = 1 + min(map(num_inputs, examples))
        raise TaskError(
            f'{len(kept)} of {len(examples)} demonstrations of the task "{task.name}" have at most {max_tokens:g} '
            f"tokens (sft.max_tokens, or the model's own context), and two are needed; the shortest has {shortest}"
        )
    num_heldout = max(1, min(num_heldout, int(_HELDOUT_SHARE * len(kept))))
    return Examples(training=kept[num_heldout:], heldout=kept[:num_heldout], num_too_long=len(examples) - len(kept))


def _end_of_turn(task: Task, text: Text) -> int:
    """Return the token that ends what the model says."""
    ends = []
    if task.prompt.chat:
        ends = turn_end(text.tokenizer)
    return ends[0] if ends else cast(int, text.tokenizer.eos_token_id)


def _observe_nothing(step: Step) -> Sequence[int]:
    return ()


def _example(
    prompt: Sequence[int],
    item: Demonstration,
    last: Sequence[int],
    *,
    text: Text,
    observe: Callable[[Step], Sequence[int]],
    end: int,
) -> Completion:
    """Return one demonstration as tokens; `last` is its completion, or the last turn of a conversation.

    In a conversation turns of the model and of the environment alternate.
    """
    tokens: list[int] = []
    forced: list[bool] = []
    for number, turn in enumerate(item.earlier):
        is_observed = number % 2 == 1
        if is_observed:
            tokens += observe(Step(observation=turn))
        else:
            tokens += [*text.encode(turn), end]
        forced += [is_observed] * (len(tokens) - len(forced))
    return imitated(prompt, [*tokens, *last], [*forced, *[False] * len(last)])


def plan_batches(examples: Examples, settings: SftSettings, *, seed: int) -> list[list[int]]:
    """Return the indices of the examples in each step's batch."""
    lengths = list(map(num_inputs, examples.training))
    part_of_epoch = max(1, sum(lengths) // _BATCHES_PER_EPOCH)
    tokens = settings.batch_tokens or min(LARGEST_BATCH_TOKENS, part_of_epoch)
    order = _order(len(lengths), seed)
    if settings.steps is not None:
        return list(islice(_batches(order, lengths, tokens), settings.steps))
    num_examples = max(1, round((settings.epochs or EPOCHS) * len(lengths)))
    return list(_batches(islice(order, num_examples), lengths, tokens))


def _order(num: int, seed: int) -> Iterator[int]:
    """Yield the indices of one epoch after another, each in a new random order."""
    epoch = 0
    while True:
        yield from random.Random(derive_seed("sft order", seed, epoch)).sample(range(num), num)
        epoch += 1


def _batches(order: Iterator[int], lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Divide an order into batches of at most `tokens` tokens, or of one longer example."""
    batch = []
    spent = 0
    for index in order:
        if batch and spent + lengths[index] > tokens:
            yield batch
            batch = []
            spent = 0
        batch.append(index)
        spent += lengths[index]
    if batch:
        yield batch
