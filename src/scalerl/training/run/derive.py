"""Derive the settings that a recipe leaves open (`derived`) from the model, its tokenizer and the problems.

model.path -> configuration, tokenizer ->  chat, context, rate    \\
task       -> problems, references     ->  grader, prompt length   >  a recipe without open settings, with reasons
device     -> FLOPs per second         ->  length, batch, sizes   /
"""

import math
import re
from collections.abc import Sequence
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
MOST_GROUPS = 48
"""Problems per batch, at most: the paper's number."""
FEWEST_GROUPS = 4
"""Problems per batch, at least: enough for some to have both right and wrong answers."""
MOST_EVALUATED = 1000
MOST_ENCODED = 1000
"""Number of problems, those with most characters, among which the longest prompt is looked for."""
_SAMPLE = 2
"""FLOPs per parameter for a sampled token."""
_STEP = 8
"""FLOPs per parameter for a token that is sampled and trained on."""
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
    by_key = _Derivation(recipe, gpus or Gpus.here()).all()
    if unknown := [key for key in recipe.derived if key not in by_key]:
        raise RecipeError(f"derived names {quoted(unknown)}, which cannot be derived; choices: {quoted(by_key)}")
    # The chosen length control may have no such setting.
    skipped = {"length.max_length"}.difference(recipe.length_settings)
    chosen = tuple(by_key[key] for key in recipe.derived if key not in skipped)
    return with_derived(recipe, {each.key: each.value for each in chosen}), chosen


class _Derivation:
    """Derives every setting that can be derived, each from the values that apply for the earlier ones."""

    def __init__(self, recipe: Recipe, gpus: Gpus | None) -> None:
        if recipe.tasks:
            raise RecipeError("settings can be derived for one task, not for several: set them, or train on one task")
        path = recipe.model.required_path
        trust = recipe.model.trust_remote_code
        self._recipe = recipe
        self._gpus = gpus
        self._device = "cpu" if gpus is None else "cuda"
        self._config = load_config(path, trust_remote_code=trust)
        self._tokenizer = load_tokenizer(path, trust_remote_code=trust)
        self._sizes = ModelSizes.from_config(self._config)
        self._task = build_whole_task(recipe.task, recipe.evaluation)
        self._context = getattr(self._config, "max_position_embeddings", None) or recipe.rollout.context
        self._derived: dict[str, Derived] = {}

    def _add(self, key: str, value: Any, reason: str) -> Any:
        """Record a derived value; return the value that applies, which is the recipe's if it sets the key."""
        self._derived[key] = Derived(key, value, reason)
        return value if key in self._recipe.derived else value_at(self._recipe, key)

    def all(self) -> dict[str, Derived]:
        template = bool(getattr(self._tokenizer, "chat_template", None))
        chat = self._add("task.chat", template, f"the tokenizer has {'a' if template else 'no'} chat template")
        self._add("task.grader", *_grader(self._task))
        prompt = self._longest_prompt(chat)
        length = self._longest_completion(prompt)
        why = f"prompt and completion; the model has room for {self._context:,}"
        self._add("rollout.context", prompt + length, why)
        self._batch(length)
        rank = self._savings()
        self._evaluation(length)
        rate = ADAPTER_RATE if rank else RATE
        width = self._config.hidden_size
        self._add("optimizer.lr", float(f"{rate / width:.1g}"), f"{rate:g} / width {width:,}")
        return self._derived

    def _longest_prompt(self, chat: bool) -> int:
        asked = [each.asked for each in self._task.training]
        # The prompt with most tokens is among those with most characters.
        longest = sorted(asked, key=_num_characters, reverse=True)[:MOST_ENCODED]
        text = Text(tokenizer=self._tokenizer, stop_tokens=())
        num = max(map(len, text.encode_prompts(longest, replace(self._task.prompt, chat=chat))))
        room = min(16 * math.ceil(num / 16), self._context // 2)
        return self._add("rollout.max_prompt_tokens", room, f"the longest of {len(asked):,} prompts has {num:,} tokens")

    def _longest_completion(self, prompt: int) -> int:
        limits = self._recipe.length_settings
        room = self._context - prompt
        is_open = "length.max_length" in self._recipe.derived
        if room < 1 and is_open:
            raise RecipeError(
                f"rollout.max_prompt_tokens is {prompt}, but the model's context has only {self._context} tokens for "
                f"prompt and completion: lower it"
            )
        usual = LENGTH[self._device]
        length = max(min(usual, room), 1)
        why = f"{usual:,} on this device, if the model's context has room"
        self._derived["length.max_length"] = Derived("length.max_length", length, why)
        if not limits or (is_open and "length.max_length" in limits):
            return length
        return sum(value_at(self._recipe, key) for key in limits)

    def _per_minute(self, length: int) -> float:
        """Return the completions of this length that a forward pass for each token can take in about a minute."""
        return STEP_S * FLOPS[self._device] / (self._sizes.shape.params * length)

    def _batch(self, length: int) -> None:
        shape = self._sizes.shape
        num = len(self._task.training)
        groups = int(self._per_minute(length) / _STEP / self._recipe.pipeline.completions_per_group)
        groups = max(min(groups, num // 10, MOST_GROUPS), FEWEST_GROUPS)
        size = size_words(shape.body_params + shape.head_params)
        why = f"about a minute per step with {size} parameters, ten steps per epoch"
        self._add("pipeline.groups_per_batch", groups, why)

    def _savings(self) -> int:
        """Derive the settings that determine the memory of training, and the number of slots; return the rank."""
        is_open = {*self._recipe.derived}.difference({"length.max_length"}.difference(self._recipe.length_settings))
        settled = {key: each.value for key, each in self._derived.items() if key in is_open}
        recipe = replaced(self._recipe, settled)
        gpus = self._gpus
        batch = recipe.pipeline.batch
        choice = None if gpus is None else choose_savings(recipe, self._sizes, gpus, recipe.derived)
        if gpus is None or choice is None:
            # No known settings fit, or this layout is not one that savings are chosen for; `--check` says more.
            why = dict.fromkeys(KEYS, "on a CPU nothing is saved" if gpus is None else "as the recipe has it")
            values = {key: value_at(recipe, key) for key in KEYS} | {"rollout.slots": batch}
        else:
            why = reasons(recipe, self._sizes, gpus, choice)
            values = choice.changes
        if values["rollout.slots"] == batch:
            why["rollout.slots"] = "one batch: training follows sampling closely"
        applied = {key: self._add(key, values[key], why[key]) for key in KEYS}
        return applied["model.lora.rank"]

    def _evaluation(self, length: int) -> None:
        # A task that does not keep problems apart gives a fifth of them at most.
        num = len(self._task.evaluation)
        share = 1
        if not num:
            num = len(self._task.training)
            share = 5
        samples = int(self._per_minute(length) / _SAMPLE / self._recipe.evaluation.samples_per_prompt)
        evaluated = max(min(samples, num // share, MOST_EVALUATED), min(num // 2, 8), 1)
        self._add("evaluation.num_prompts", evaluated, f"about a minute per evaluation, of {num:,} problems")


def _num_characters(asked: str | Sequence[Any]) -> int:
    """Return the characters of a problem, or of all turns of a chat."""
    return len(asked) if isinstance(asked, str) else sum(len(str(turn)) for turn in asked)


def _grader(task: Task) -> tuple[str, str]:
    answers = [problem.answer for problem in task.training]
    for name, pattern, why in (
        ("numeric", _NUMBER, "every reference is a number, or ends in #### and one"),
        ("choice", _LETTER, "every reference is a letter"),
    ):
        if task.grader == "exact" and all(map(pattern.fullmatch, answers)):
            return name, why
    return task.grader, "the task's own"
