"""Derive the settings that a recipe leaves open (`derived`) from the model, its tokenizer and the problems.

model.path -> configuration, tokenizer ->  chat, context, rate    \\
task       -> problems, references     ->  grader, prompt length   >  a recipe without open settings, with reasons
device     -> FLOPs per second         ->  length, batch, sizes   /
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from scalerl.errors import RecipeError
from scalerl.recipe.load import with_derived
from scalerl.recipe.recipe import Recipe, replaced, value_at
from scalerl.recipe.suggest import quoted
from scalerl.training.loop.requests import Text
from scalerl.training.models.load import load_config, load_tokenizer
from scalerl.training.run.memory import Gpus, ModelSizes
from scalerl.training.run.pace import size_words
from scalerl.training.run.savings import KEYS, choose_savings, reasons
from scalerl.training.tasks.build import build_whole_task
from scalerl.training.tasks.task import Task

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
MOST_ENCODED = 1000
"""Number of problems, those with most characters, among which the longest prompt is looked for."""
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
    by_key = _derive_all(recipe, gpus or Gpus.here())
    if unknown := [key for key in recipe.derived if key not in by_key]:
        raise RecipeError(f"derived names {quoted(unknown)}, which cannot be derived; choices: {quoted(by_key)}")
    # The chosen length control may have no such setting.
    skipped = {"length.max_length"}.difference(recipe.length_settings)
    chosen = tuple(by_key[key] for key in recipe.derived if key not in skipped)
    return with_derived(recipe, {each.key: each.value for each in chosen}), chosen


def _derive_all(recipe: Recipe, gpus: Gpus | None) -> dict[str, Derived]:
    """Derive every setting that can be derived, each from the values that apply for the earlier ones."""
    derived: dict[str, Derived] = {}

    def add(key: str, value: Any, reason: str) -> Any:
        """Record a derived value; return the value that applies, which is the recipe's if it sets the key."""
        derived[key] = Derived(key, value, reason)
        return value if key in recipe.derived else value_at(recipe, key)

    path, trust = recipe.model.required_path, recipe.model.trust_remote_code
    config, tokenizer = load_config(path, trust_remote_code=trust), load_tokenizer(path, trust_remote_code=trust)
    sizes, device = ModelSizes.from_config(config), "cpu" if gpus is None else "cuda"
    if recipe.tasks:
        raise RecipeError("settings can be derived for one task, not for several: set them, or train on one task")
    task = build_whole_task(recipe.task, recipe.evaluation)

    template = bool(getattr(tokenizer, "chat_template", None))
    chat = add("task.chat", template, f"the tokenizer has {'a' if template else 'no'} chat template")
    add("task.grader", *_grader(task))

    longest_context = getattr(config, "max_position_embeddings", None) or recipe.rollout.context
    text = Text(tokenizer=tokenizer, stop_tokens=())
    # The prompt with most tokens is among those with most characters.
    asked = sorted((each.asked for each in task.training), key=_num_characters, reverse=True)
    encoded = text.encode_prompts(asked[:MOST_ENCODED], replace(task.prompt, chat=chat))
    longest = max(map(len, encoded))
    prompt = min(16 * math.ceil(longest / 16), longest_context // 2)
    why = f"the longest of {len(asked):,} prompts has {longest:,} tokens"
    prompt = add("rollout.max_prompt_tokens", prompt, why)

    room, limits, is_open = longest_context - prompt, recipe.length_settings, "length.max_length" in recipe.derived
    if room < 1 and is_open:
        raise RecipeError(
            f"rollout.max_prompt_tokens is {prompt}, but the model's context has only {longest_context} tokens for "
            f"prompt and completion: lower it"
        )
    length, sets_length = max(min(LENGTH[device], room), 1), is_open and "length.max_length" in limits
    why = f"{LENGTH[device]:,} on this device, if the model's context has room"
    derived["length.max_length"] = Derived("length.max_length", length, why)
    if limits and not sets_length:
        length = sum(value_at(recipe, key) for key in limits)
    why = f"prompt and completion; the model has room for {longest_context:,}"
    context = add("rollout.context", prompt + length, why)

    params, weights = sizes.shape.params, sizes.shape.body_params + sizes.shape.head_params
    per_minute = STEP_S * FLOPS[device] / (params * length)
    groups = int(per_minute / _STEP / recipe.pipeline.completions_per_group)
    groups = max(min(groups, len(asked) // 10, MOST_GROUPS), FEWEST_GROUPS)
    why = f"about a minute per step with {size_words(weights)} parameters, ten steps per epoch"
    groups = add("pipeline.groups_per_batch", groups, why)

    settled = {"rollout.context": context, "rollout.max_prompt_tokens": prompt, "pipeline.groups_per_batch": groups}
    settled |= {"length.max_length": length} if sets_length else {}
    savings = {each.key: add(*each) for each in _savings(replaced(recipe, settled), sizes, gpus)}

    num, share = (len(task.evaluation), 1) if task.evaluation else (len(asked), 5)
    samples = int(per_minute / _SAMPLE / recipe.evaluation.samples_per_prompt)
    evaluated = max(min(samples, num // share, MOST_EVALUATED), min(num // 2, 8), 1)
    add("evaluation.num_prompts", evaluated, f"about a minute per evaluation, of {num:,} problems")

    rate = ADAPTER_RATE if savings["model.lora.rank"] else RATE
    lr = float(f"{rate / config.hidden_size:.1g}")
    add("optimizer.lr", lr, f"{rate:g} / width {config.hidden_size:,}")
    return derived


def _num_characters(asked: str | Sequence[Any]) -> int:
    """Return the characters of a problem, or of all turns of a chat."""
    return len(asked) if isinstance(asked, str) else sum(len(str(turn)) for turn in asked)


def _savings(recipe: Recipe, sizes: ModelSizes, gpus: Gpus | None) -> Iterable[Derived]:
    """Return the settings that determine the memory of training, and the number of slots."""
    batch, choice = recipe.pipeline.batch, None if gpus is None else choose_savings(recipe, sizes, gpus, recipe.derived)
    if gpus is None or choice is None:
        # No known settings fit, or this layout is not one that savings are chosen for; `--check` says more.
        why = dict.fromkeys(KEYS, "on a CPU nothing is saved" if gpus is None else "as the recipe has it")
        values = {key: value_at(recipe, key) for key in KEYS} | {"rollout.slots": batch}
    else:
        why, values = reasons(recipe, sizes, gpus, choice), choice.changes
    if values["rollout.slots"] == batch:
        why["rollout.slots"] = "one batch: training follows sampling closely"
    return [Derived(key, values[key], why[key]) for key in KEYS]


def _grader(task: Task) -> tuple[str, str]:
    answers = [problem.answer for problem in task.training]
    for name, pattern, why in (
        ("numeric", _NUMBER, "every reference is a number, or ends in #### and one"),
        ("choice", _LETTER, "every reference is a letter"),
    ):
        if task.grader == "exact" and all(map(pattern.fullmatch, answers)):
            return name, why
    return task.grader, "the task's own"
