"""Derive the settings that a recipe leaves open (`derived`) from the model, its tokenizer and the problems.

model.path -> configuration, tokenizer ->  chat, context, rate    \\
task       -> problems, references     ->  grader, prompt length   >  a recipe without open settings, with reasons
device     -> FLOPs per second         ->  length, batch, sizes   /
"""

import math
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from scalerl.config import Recipe, replaced, value_at, with_derived
from scalerl.config.suggest import quoted
from scalerl.errors import RecipeError
from scalerl.loop.requests import Text
from scalerl.models.load import load_config, load_tokenizer
from scalerl.run.memory import Gpus, ModelSizes
from scalerl.run.savings import KEYS, choose_savings, reasons
from scalerl.tasks.build import build_whole_task
from scalerl.tasks.task import Task

RATE = 5e-3
"""Learning rate x width. Recipes that learned used 0.002 (8B) to 0.03 (0.9M); collapses begin at 0.1."""
ADAPTER_RATE = 10 * RATE
"""The same for adapters, whose best rates are about ten times as high ("LoRA Without Regret", 2025)."""
FLOPS = {"cuda": 1e14, "cpu": 1.5e10}
"""Assumed FLOPs per second of a GPU and of two CPU cores."""
LENGTH = {"cuda": 1024, "cpu": 64}
"""Tokens of a completion, if the model's context has room for them."""
STEP_S = 60.0
"""About how long a step, and an evaluation, should take."""
MOST_GROUPS, FEWEST_GROUPS = 48, 4
"""Problems per batch: at most the paper's number, and enough for some to have both right and wrong answers."""
MOST_EVALUATED = 1000
_SAMPLE, _STEP = 2, 8
"""FLOPs per parameter for a sampled token, and for a token that is sampled and trained on."""
_NUMBER = re.compile(r"(?:.*####)?\s*[-\u2212]?\$?[\d,]*\.?\d+(?:/\d+)?\s*%?\s*", re.DOTALL)
_LETTER = re.compile(r"\s*\(?[A-J]\)?\.?\s*")


class Derived(NamedTuple):
    """A derived setting, its value and the reason."""

    key: str
    value: Any
    reason: str


def derive(recipe: Recipe, gpus: Gpus | None = None) -> tuple[Recipe, tuple[Derived, ...]]:
    """Return the recipe with every open setting set, and the settings that were derived.

    `gpus` are the GPUs to train on; by default those of this machine.
    """
    if not recipe.derived:
        return recipe, ()
    by_key = {each.key: each for each in _derivations(recipe, recipe.model.required_path, gpus or Gpus.here())}
    if unknown := [key for key in recipe.derived if key not in by_key]:
        raise RecipeError(f"derived names {quoted(unknown)}, which cannot be derived; choices: {quoted(by_key)}")
    # The chosen length control may have no such setting.
    skipped = {"length.max_length"}.difference(recipe.length_settings)
    chosen = tuple(by_key[key] for key in recipe.derived if key not in skipped)
    return with_derived(recipe, {each.key: each.value for each in chosen}), chosen


def _derivations(recipe: Recipe, path: str, gpus: Gpus | None) -> Iterable[Derived]:
    """Yield every setting that can be derived, given the values that the recipe sets."""
    trust = recipe.model.trust_remote_code
    config, tokenizer = load_config(path, trust_remote_code=trust), load_tokenizer(path, trust_remote_code=trust)
    sizes, device = ModelSizes.from_config(config), "cpu" if gpus is None else "cuda"
    shape = sizes.shape
    if recipe.tasks:
        raise RecipeError("settings can be derived for one task, not for several: set them, or train on one task")
    task = build_whole_task(recipe.task, recipe.evaluation)
    is_open = frozenset(recipe.derived).__contains__

    template = bool(getattr(tokenizer, "chat_template", None))
    chat = template if is_open("task.chat") else recipe.task.chat
    yield Derived("task.chat", chat, f"the tokenizer has {'a' if template else 'no'} chat template")
    yield Derived("task.grader", *_grader(task))

    longest_context = getattr(config, "max_position_embeddings", None) or recipe.rollout.context
    text = Text(tokenizer=tokenizer, stop_tokens=())
    encoded = text.encode_prompts([each.asked for each in task.training], replace(task.prompt, chat=chat))
    longest = max(map(len, encoded))
    prompt = min(16 * math.ceil(longest / 16), longest_context // 2)
    yield Derived(
        "rollout.max_prompt_tokens", prompt, f"the longest of {len(encoded):,} prompts has {longest:,} tokens"
    )
    prompt = prompt if is_open("rollout.max_prompt_tokens") else recipe.rollout.max_prompt_tokens

    room = longest_context - prompt
    if room < 1 and is_open("length.max_length"):
        raise RecipeError(
            f"rollout.max_prompt_tokens is {prompt}, but the model's context has only {longest_context} tokens for "
            f"prompt and completion: lower it"
        )
    length, limits = max(min(LENGTH[device], room), 1), recipe.length_settings
    yield Derived("length.max_length", length, f"{LENGTH[device]:,} on this device, if the model's context has room")
    if limits and not (is_open("length.max_length") and "length.max_length" in limits):
        length = sum(getattr(recipe.length, key.partition(".")[2]) for key in limits)
    context = prompt + length
    yield Derived("rollout.context", context, f"prompt and completion; the model has room for {longest_context:,}")

    per_minute = STEP_S * FLOPS[device] / (shape.params * length)
    completions = recipe.pipeline.completions_per_group
    tenth_of_epoch = len(encoded) // 10
    groups = int(per_minute / _STEP / completions)
    groups = max(min(groups, tenth_of_epoch, MOST_GROUPS), FEWEST_GROUPS)
    size = f"{shape.params / 1e6:,.3g}M parameters"
    yield Derived("pipeline.groups_per_batch", groups, f"about a minute per step with {size}, ten steps per epoch")
    groups = groups if is_open("pipeline.groups_per_batch") else recipe.pipeline.groups_per_batch
    settled = {"rollout.context": context, "rollout.max_prompt_tokens": prompt, "pipeline.groups_per_batch": groups}
    if is_open("length.max_length") and "length.max_length" in limits:
        settled["length.max_length"] = length
    memory = {each.key: each for each in _savings(replaced(recipe, settled), sizes, gpus)}
    yield from memory.values()

    num, share = (len(task.evaluation), 1) if task.evaluation else (len(encoded), 5)
    samples = int(per_minute / _SAMPLE / recipe.evaluation.samples_per_prompt)
    evaluated = max(min(samples, num // share, MOST_EVALUATED), min(num // 2, 8), 1)
    yield Derived("evaluation.num_prompts", evaluated, f"about a minute per evaluation, of {num:,} problems")

    has_adapters = memory["model.lora.rank"].value if is_open("model.lora.rank") else recipe.model.lora.rank
    rate = ADAPTER_RATE if has_adapters else RATE
    lr = float(f"{rate / config.hidden_size:.1g}")
    yield Derived("optimizer.lr", lr, f"{rate:g} / width {config.hidden_size:,}")


def _savings(recipe: Recipe, sizes: ModelSizes, gpus: Gpus | None) -> Iterable[Derived]:
    """Yield the settings that determine the memory of training, and the number of slots."""
    batch = recipe.pipeline.groups_per_batch * recipe.pipeline.completions_per_group
    choice = None if gpus is None else choose_savings(recipe, sizes, gpus, recipe.derived)
    if gpus is not None and choice is not None:
        why = reasons(recipe, sizes, gpus, choice)
    else:
        # No known settings fit, or this layout is not one that savings are chosen for; `--check` says more.
        why = dict.fromkeys(KEYS, "on a CPU nothing is saved" if gpus is None else "as the recipe has it")
    values = {key: value_at(recipe, key) for key in KEYS} if choice is None else choice.changes
    for key in KEYS:
        is_batch = key == "rollout.slots" and (choice is None or values[key] == batch)
        value, reason = (batch, "one batch: training follows sampling closely") if is_batch else (values[key], why[key])
        yield Derived(key, value, reason)


def _grader(task: Task) -> tuple[str, str]:
    answers = [problem.answer for problem in task.training]
    if task.grader == "exact" and all(map(_NUMBER.fullmatch, answers)):
        return "numeric", "every reference is a number, or ends in #### and one"
    if task.grader == "exact" and all(map(_LETTER.fullmatch, answers)):
        return "choice", "every reference is a letter"
    return task.grader, "the task's own"
