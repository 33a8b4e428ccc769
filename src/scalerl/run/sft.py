"""Supervised fine-tuning: train a base model on a task's own demonstrations (the paper's SFT stage).

    task.demonstrations -> tokens, loss on completions alone -> AdamW, cosine -> a Hugging Face folder + made_by.json

Starts from a model's folder, or builds a small Llama with a tokenizer of single characters.
"""

import dataclasses
import functools
import json
import math
import platform
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from scalerl.config.parts import GradingSettings
from scalerl.errors import RunFolderError, TaskError
from scalerl.loop.grading import opened_thinking, verdicts
from scalerl.loop.requests import Text
from scalerl.models.load import load_model
from scalerl.models.tiny import TinyShape, build_model, build_tokenizer
from scalerl.store import check_place, new_folder
from scalerl.tasks.files import hide_hub_warnings
from scalerl.tasks.task import Demonstration, Task
from scalerl.types import derive_seed

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

MADE_BY = "made_by.json"

# What a loss leaves out; PyTorch's own default.
_IGNORED = -100

# Of each evaluation problem, where a rate at temperature 1 is recorded.
_SAMPLES = 4
_GENERATE_BATCH = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class SftSettings:
    """Everything that determines the model, besides its task."""

    model: str = ""
    """Folder or hub name to start from; if empty, a new model of `shape` is built."""
    shape: TinyShape = field(default_factory=TinyShape)
    seed: int = 0
    num_demonstrations: int = 250_000
    num_heldout: int = 4_000
    """Further demonstrations that are not trained on; their loss shows when there is nothing left to learn."""
    steps: int = 5_000
    batch_size: int = 256
    """Demonstrations per step."""
    lr: float = 2e-3
    warmup_steps: int = 200
    final_lr_frac: float = 0.02
    """The cosine ends at this fraction of lr."""
    weight_decay: float = 0.01
    grad_clip: float = 1.0
    evaluate_every: int = 250


@dataclass(frozen=True, slots=True, kw_only=True)
class SftProgress:
    """One point of the loss curve, in nats per completion token."""

    step: int
    train_loss: float
    """Mean since the previous point; nan at step 0."""
    heldout_loss: float
    elapsed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SftResult:
    """The model that was made, and its loss curve."""

    folder: Path
    num_parameters: int
    curve: tuple[SftProgress, ...]

    @property
    def gain_last_fifth(self) -> float:
        """Share by which the held-out loss fell in the last fifth of the steps; below 0.02 it has flattened."""
        last = self.curve[-1]
        before = max((point for point in self.curve if point.step <= 0.8 * last.step), key=lambda point: point.step)
        return 1.0 - last.heldout_loss / before.heldout_loss


def sft(
    task: Task,
    out: str | Path,
    settings: SftSettings | None = None,
    *,
    device: str = "",
    grading: GradingSettings | None = None,
    record: Mapping[str, Any] | None = None,
    on_drawing: Callable[[int], None] = lambda num: None,
    on_progress: Callable[[SftProgress], None] = lambda progress: None,
) -> SftResult:
    """Train a model on the task's demonstrations and save it; made_by.json keeps `record` along with the settings.

    The default device is a GPU if there is one. `grading` limits the grader when the result is measured.
    """
    settings, out = settings or SftSettings(), Path(out)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    check_place(out)
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise RunFolderError(f"{out} exists and is not empty: give another folder for the model")
    # The model before the demonstrations: a wrong path shows at once, and drawing them takes a while.
    with hide_hub_warnings():
        given = load_model(settings.model, dtype=torch.float32, device="cpu") if settings.model else None
    on_drawing(settings.num_demonstrations)
    demonstrations, heldout = _draw_demonstrations(task, settings)
    if given is None:
        texts = (text for item in demonstrations for text in (item.problem.prompt, item.completion))
        tokenizer = build_tokenizer(texts, task.answer)
        torch.manual_seed(derive_seed("sft weights", settings.seed))
        model = build_model(tokenizer, settings.shape)
        text = Text(tokenizer=tokenizer, stop_tokens=(cast(int, tokenizer.eos_token_id),))
    else:
        tokenizer, model = cast("PreTrainedTokenizerFast", given.tokenizer), given.model
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        text = Text(tokenizer=tokenizer, stop_tokens=given.stop_tokens)
    model.to(device)  # pyright: ignore[reportArgumentType]
    context = getattr(model.config, "max_position_embeddings", math.inf)
    examples, heldout_examples = (_examples(text, task, items, context) for items in (demonstrations, heldout))
    curve = tuple(_train(model, examples, heldout_examples, settings, on_progress))
    result = SftResult(folder=out, num_parameters=sum(p.numel() for p in model.parameters()), curve=curve)
    # Half as long again as any demonstration: what has not ended by then never will.
    max_new_tokens = max(example.num_targets for example in examples) * 3 // 2
    rates = measure(model, text, task, grading=grading, max_new_tokens=max_new_tokens)
    made_by = _record(result, settings, device) | dict(record or {}) | {"pass_rates": rates}
    with new_folder(out, write_errors=(SafetensorError,)) as unfinished:
        model.to("cpu").save_pretrained(unfinished)  # pyright: ignore[reportArgumentType]
        tokenizer.save_pretrained(unfinished)
        (unfinished / MADE_BY).write_text(json.dumps(made_by, indent=1) + "\n", encoding="utf-8")
    return result


def measure(
    model: "PreTrainedModel", text: Text, task: Task, *, grading: GradingSettings | None = None, max_new_tokens: int
) -> dict[str, Any]:
    """Return the model's pass rates on the task's evaluation problems, as made_by.json holds them."""
    rate = functools.partial(pass_rate, model, text, task, grading=grading, max_new_tokens=max_new_tokens)
    return {
        "num_prompts": len(task.evaluation),
        "greedy": rate(temperature=0.0),
        "temperature_1": rate(samples_per_prompt=_SAMPLES),
        "samples_per_prompt_at_temperature_1": _SAMPLES,
    }


@torch.no_grad()
def pass_rate(
    model: "PreTrainedModel",
    text: Text,
    task: Task,
    *,
    samples_per_prompt: int = 1,
    temperature: float = 1.0,
    max_new_tokens: int,
    seed: int = 0,
    grading: GradingSettings | None = None,
) -> float | None:
    """Return the mean of `correct`, sampled by transformers' own `generate`, as a check on our engine.

    Prompts, stop tokens and decoding are those of training. Temperature 0 is greedy. The mean is over answers with a
    verdict; None if there is none.
    """
    problems = [problem for problem in task.evaluation for _ in range(samples_per_prompt)]
    sampling: dict[str, Any] = {"do_sample": False}
    if temperature:
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    sampling |= {"eos_token_id": list(text.stop_tokens), "pad_token_id": text.tokenizer.pad_token_id}
    prompts = text.encode_prompts([problem.prompt for problem in problems], task.prompt)
    opening = opened_thinking(text.decode(next(iter(prompts), ())), task)
    answers: list[tuple[str, str]] = []
    model.eval()
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed("pass rate", seed))
        for start in range(0, len(problems), _GENERATE_BATCH):
            batch = {"input_ids": prompts[start : start + _GENERATE_BATCH]}
            inputs = text.tokenizer.pad(batch, return_tensors="pt", padding_side="left").to(model.device)
            outputs = cast(Any, model).generate(**inputs, max_new_tokens=max_new_tokens, **sampling)
            completions = outputs[:, inputs["input_ids"].shape[1] :].tolist()
            answers.extend(
                (opening + text.decode(up_to_stop(tokens, text.stop_tokens)), problem.answer)
                for problem, tokens in zip(problems[start:], completions, strict=False)
            )
    judged = [verdict for verdict in verdicts(task, answers, grading) if verdict is not None]
    return sum(judged) / len(judged) if judged else None


def up_to_stop(tokens: Sequence[int], stop_tokens: Sequence[int]) -> Sequence[int]:
    """Return tokens up to the stop token, without the padding that follows it in a batch."""
    ends = (place for place, token in enumerate(tokens, start=1) if token in stop_tokens)
    return tokens[: next(ends, len(tokens))]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Example:
    tokens: Tensor
    targets: Tensor
    """Each token's successor where that belongs to the completion."""
    num_targets: int


def _draw_demonstrations(task: Task, settings: SftSettings) -> tuple[Sequence[Demonstration], Sequence[Demonstration]]:
    if task.demonstrations is None:
        raise TaskError(
            f'the task "{task.name}" has no demonstrations to learn from (of a file: set demonstration_field)'
        )
    drawn = task.demonstrations(settings.num_demonstrations + settings.num_heldout, settings.seed)
    # A task with fewer demonstrations still holds out the same share.
    share = settings.num_heldout / (settings.num_demonstrations + settings.num_heldout)
    num_heldout = max(1, round(share * len(drawn)))
    if num_heldout >= len(drawn):
        raise TaskError(f'the task "{task.name}" has {len(drawn)} demonstrations; at least two are needed')
    return drawn[num_heldout:], drawn[:num_heldout]


def _examples(text: Text, task: Task, items: Sequence[Demonstration], context: float) -> list[_Example]:
    prompts = text.encode_prompts([item.problem.prompt for item in items], task.prompt)
    completions = text.encode_all([item.completion for item in items])
    examples: list[_Example] = []
    for item, prompt, completion in zip(items, prompts, completions, strict=True):
        tokens = torch.tensor([*prompt, *completion, text.tokenizer.eos_token_id])
        if len(tokens) > context:
            raise ValueError(
                f'the demonstration of problem "{item.problem.id}" has {len(tokens)} tokens, but the model has room '
                f"for {context:g}"
            )
        targets = tokens[1:].clone()
        targets[: len(prompt) - 1] = _IGNORED
        examples.append(_Example(tokens=tokens[:-1], targets=targets, num_targets=len(completion) + 1))
    return examples


def _train(
    model: "PreTrainedModel",
    examples: Sequence[_Example],
    heldout: Sequence[_Example],
    settings: SftSettings,
    on_progress: Callable[[SftProgress], None],
) -> Iterator[SftProgress]:
    start = time.monotonic()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.lr, betas=(0.9, 0.95), weight_decay=settings.weight_decay
    )
    batches = _batches(examples, settings)
    mean_targets = sum(example.num_targets for example in examples) / len(examples)
    losses: list[Tensor] = []
    for step in range(settings.steps + 1):
        if step % settings.evaluate_every == 0 or step == settings.steps:
            train_loss = torch.stack(losses).mean().item() if losses else math.nan
            losses.clear()
            progress = SftProgress(
                step=step,
                train_loss=train_loss,
                heldout_loss=_heldout_loss(model, heldout, settings.batch_size),
                elapsed_s=time.monotonic() - start,
            )
            on_progress(progress)
            yield progress
        if step == settings.steps:
            return
        for group in optimizer.param_groups:
            group["lr"] = settings.lr * _schedule(step, settings)
        batch = next(batches)
        # Batches hold examples of similar length: a mean over each batch's own tokens would favour short ones.
        loss = _loss(model, batch) / (len(batch) * mean_targets)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.grad_clip)
        optimizer.step()
        losses.append(loss.detach())


def _schedule(step: int, settings: SftSettings) -> float:
    if step < settings.warmup_steps:
        return (step + 1) / settings.warmup_steps
    place = (step - settings.warmup_steps) / max(1, settings.steps - settings.warmup_steps)
    return settings.final_lr_frac + (1 - settings.final_lr_frac) * 0.5 * (1 + math.cos(math.pi * place))


# Batches that are sorted by length together: enough to save most padding, few enough to keep the order random.
_BATCHES_SORTED = 16


def _batches(examples: Sequence[_Example], settings: SftSettings) -> Iterator[list[_Example]]:
    """Yield batches without end, epoch after epoch, each epoch shuffled, with examples of similar length."""
    size = min(settings.batch_size, len(examples))
    stream = random.Random(derive_seed("sft order", settings.seed))
    while True:
        order = stream.sample(examples, len(examples))
        for start in range(0, len(order), size * _BATCHES_SORTED):
            chunk = sorted(order[start : start + size * _BATCHES_SORTED], key=lambda example: len(example.tokens))
            batches = [chunk[place : place + size] for place in range(0, len(chunk) - size + 1, size)]
            stream.shuffle(batches)
            yield from batches


def _loss(model: "PreTrainedModel", batch: Sequence[_Example]) -> Tensor:
    """Return the sum of the negative log-likelihood over completion tokens."""
    tokens = pad_sequence([example.tokens for example in batch], batch_first=True)
    targets = pad_sequence([example.targets for example in batch], batch_first=True, padding_value=_IGNORED)
    # No mask is needed: padding is on the right, and no real token attends to it.
    logits = model(input_ids=tokens.to(model.device)).logits
    return functional.cross_entropy(
        logits.flatten(0, 1).float(), targets.to(model.device).flatten(), ignore_index=_IGNORED, reduction="sum"
    )


@torch.no_grad()
def _heldout_loss(model: "PreTrainedModel", heldout: Sequence[_Example], batch_size: int) -> float:
    model.eval()
    ordered = sorted(heldout, key=lambda example: len(example.tokens))
    sums = [_loss(model, ordered[start : start + batch_size]) for start in range(0, len(ordered), batch_size)]
    model.train()
    return torch.stack(sums).sum().item() / sum(example.num_targets for example in heldout)


def _record(result: SftResult, settings: SftSettings, device: str) -> dict[str, Any]:
    import transformers

    recorded = dataclasses.asdict(settings)
    if settings.model:
        del recorded["shape"]  # the model has a shape already
    return {
        "made_by": "scalerl sft",
        "settings": recorded,
        "num_parameters": result.num_parameters,
        "gain_last_fifth": round(result.gain_last_fifth, 5),
        "curve": [
            {key: None if value != value else round(value, 5) for key, value in dataclasses.asdict(point).items()}
            for point in result.curve
        ],
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else device,
    }
