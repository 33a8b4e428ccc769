"""Recipes of other frameworks (`scalerl recipe check`) as settings of ours, and where these differ from ScaleRL's.

    file -> their settings by dotted key -> FRAMEWORKS: settings of ours, and notes -> those that ScaleRL has otherwise

Each framework has a function that returns our settings by dotted key, and notes on what none of our settings can say.
Written for TRL 1.16, verl's ppo_trainer and prime-rl's rl.toml. Nothing of a file is run.
"""

import ast
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from scalerl.config.keys import leaves
from scalerl.config.load import load_recipe, read_table
from scalerl.config.tree import settings_of
from scalerl.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """One setting of another framework, and the setting of ours that it corresponds to."""

    theirs: str
    """Key of their configuration."""
    value: Any
    is_default: bool
    """Whether it is their default: the file does not set it."""
    ours: str
    """Key of our recipe."""
    our_value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One difference between a recipe and ScaleRL."""

    kind: str
    """Our setting that differs, or the kind of a note."""
    ours: str
    """Our setting that it is about."""
    statement: str
    change: str
    """What to set in their configuration; empty where the framework has no such setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A recipe of another framework in our terms."""

    framework: str
    translations: tuple[Translation, ...]
    differences: tuple[Difference, ...]
    not_read: tuple[str, ...] = ()
    """Keys that touch none of ScaleRL's components, or that are not known here."""


SCALERL = {
    "loss.name": "caps the ratio of a token at 5 and keeps its gradient (CISPO), where a clipped token loses it",
    "loss.cap": "has an absolute cap of 5, and 4 to 8 did alike",
    "weights.name": "averages over the tokens of each prompt, then over prompts",
    "advantage.normalisation.name": "divides advantages by the batch's standard deviation",
    "model.fp32_head": "computes the head in FP32 at generator and learner: one side alone can be worse than none",
    "filter.zero_variance": "drops groups whose rewards are all equal, which else stay in the loss's denominator",
    "curriculum.name": "leaves out problems that are solved nearly always (no-positive-resampling)",
    "length.name": "interrupts thinking and lets the model answer, where others cut it off",
    "filter.drop_truncated": "does not train on answers that were cut off",
    "pipeline.drain": "trains while completions are generated (PipelineRL-8) instead of in turns with it",
    "pipeline.max_lag": "bounds each group's age by 8 steps",
    "learner.start_kl": "has no KL term that holds the policy back",
}
"""What ScaleRL does, by the setting of ours that says so."""

Settings = dict[str, Any]
Notes = dict[str, tuple[str, str]]
"""By kind: our setting that a note is about, and a sentence."""


class Reader:
    """Reads settings by dotted key, with the framework's defaults, and records which keys were read."""

    def __init__(self, settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self.settings, self._defaults = dict(settings), dict(defaults)
        self.read: set[str] = set()

    def get(self, key: str) -> Any:
        """Return a setting, or the framework's default."""
        self.read.add(key)
        value = self.settings.get(key)
        return self._defaults.get(key) if value is None else value

    def number(self, key: str, otherwise: float = 0.0) -> float:
        value = self.get(key)
        try:
            return otherwise if value is None or isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            return otherwise

    def flag(self, key: str) -> bool:
        value = self.get(key)
        return value.strip().lower() in ("true", "1", "yes") if isinstance(value, str) else bool(value)


def _head(learner: bool, generator: bool) -> str:
    ends = {"learner": learner, "generator": generator}
    return "both" if all(ends.values()) else next((end for end, is_fp32 in ends.items() if is_fp32), "none")


def _anchor(*, one_step: bool) -> Notes:
    """Note that the ratio is against log-probs that the learner recomputed, not those of the generator."""
    if not one_step:
        return {"anchor": ("loss", "the ratio is against log-probs that the learner recomputed, not the generator's")}
    words = "with one step per generation the ratio is against the learner's own log-probs and always 1: neither clip"
    return {"clip_never_acts": ("loss", f"{words} nor cap ever acts")}


def _trl(given: Reader) -> tuple[Settings, Notes]:
    """Its ratio is against log-probs recomputed by the learner, which at one step per generation are its own."""
    name, low = str(given.get("loss_type")), given.number("epsilon", 0.2)
    high, is_cispo = given.number("epsilon_high", low), name == "cispo"
    sequence = given.get("importance_sampling_level") == "sequence"
    cast, vllm = given.flag("cast_lm_head_to_fp32"), given.flag("use_vllm")
    accumulation = given.number("gradient_accumulation_steps", 1) or 1
    per_generation = given.number("steps_per_generation") or accumulation
    steps = max(round(given.number("num_iterations", 1) * per_generation / accumulation), 1)
    words = f"the cap is absolute here, and {high:g} lies below 1: every ratio is cut to it, which only scales the "
    too_low: Notes = {"cap_too_low": ("loss.cap", f"{words}learning rate")}
    return {
        "loss.name": name if is_cispo else "gspo" if sequence else "dapo",
        "loss.cap": high if is_cispo else None,
        "loss.clip_low": None if is_cispo else low,
        "loss.clip_high": None if is_cispo else high,
        "weights.name": {"grpo": "sample", "dr_grpo": "constant"}.get(name, "token"),
        "advantage.normalisation.name": {"batch": "batch", "none": "none", "False": "none"}.get(
            str(given.get("scale_rewards")), "prompt"
        ),
        "model.fp32_head": _head(cast, cast and not vllm),
        "filter.zero_variance": False,
        "filter.drop_truncated": given.flag("mask_truncated_completions"),
        "pipeline.push_every": steps,
        "pipeline.drain": True,
        "learner.start_kl": given.number("beta"),
    }, _anchor(one_step=steps == 1) | (too_low if is_cispo and high < 1 else {})


_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
_STALE = "async_training.staleness_threshold"


def _verl(given: Reader) -> tuple[Settings, Notes]:
    """The cap of its CISPO is 1 + clip_ratio_high, with a floor of 1 - clip_ratio_low."""
    name, advantage = str(given.get(f"{_ACTOR}.policy_loss.loss_mode")), str(given.get("algorithm.adv_estimator"))
    low, high = given.number(f"{_ACTOR}.clip_ratio_low"), given.number(f"{_ACTOR}.clip_ratio_high")
    by_group = advantage == "grpo" and given.flag("algorithm.norm_adv_by_std_in_grpo")
    batch, mini = given.number("data.train_batch_size", 1), given.number(f"{_ACTOR}.ppo_mini_batch_size", 1) or 1
    steps = max(round(batch / mini * given.number(f"{_ACTOR}.ppo_epochs", 1)), 1)
    stale, is_cispo = given.get(_STALE), name == "cispo"
    averages = {"token-mean": "token", "seq-mean-token-mean": "sample"}
    coefficient, uses_kl = given.number(f"{_ACTOR}.kl_loss_coef"), given.flag(f"{_ACTOR}.use_kl_loss")
    notes: Notes = {}
    if is_cispo and low < 1:
        notes["floor"] = ("loss.cap", f"ratios below {1 - low:g} are raised to it; ScaleRL's CISPO has no floor")
    if given.flag("algorithm.filter_groups.enable"):
        words = "groups without variance are replaced by sampling more, which costs compute; ScaleRL drops them"
        notes["refills"] = ("filter.zero_variance", words)
    if not given.flag("algorithm.rollout_correction.bypass_mode"):
        notes |= _anchor(one_step=stale is None and steps == 1)
    if stale is not None:
        words = f"staleness_threshold = {stale} limits the share of stale samples, not how old one may be"
        notes["lag"] = ("pipeline.max_lag", words)
    return {
        "loss.name": name if name in ("cispo", "gspo") else "dapo",
        "loss.cap": 1 + high if is_cispo else None,
        "loss.clip_low": None if is_cispo else low,
        "loss.clip_high": None if is_cispo else high,
        "weights.name": averages.get(str(given.get(f"{_ACTOR}.loss_agg_mode")), "constant"),
        "advantage.normalisation.name": "batch"
        if advantage.startswith("reinforce_plus_plus")
        else "prompt"
        if by_group
        else "none",
        "advantage.baseline.name": "leave_one_out" if advantage == "rloo" else "mean",
        "model.fp32_head": "none",
        "filter.zero_variance": given.flag("algorithm.filter_groups.enable"),
        "pipeline.push_every": steps if stale is None else None,
        "pipeline.drain": stale is None,
        "learner.start_kl": coefficient if uses_kl else 0.0,
    }, notes


_MOST, _BATCH = "orchestrator.max_off_policy_steps", "orchestrator.batch_size"


def _prime_rl(given: Reader) -> tuple[Settings, Notes]:
    """Its ratio is against the generator's log-probs. Groups that are too old are thrown away rather than avoided."""
    most, keys = given.number(_MOST), list(given.settings)

    def fp32_head(side: str) -> bool:
        named = (key for key in keys if key.startswith(side) and "head" in key and re.search("fp32|float32", key))
        return any(map(given.flag, named))

    filtered = [key for key in keys if "zero_advantage" in f"{key} {given.settings[key]}"]
    filtered += [key for key in keys if key.endswith("online_difficulty_filtering") and given.flag(key)]
    easy = [key for key in keys if "easy" in key]
    given.read.update(filtered, easy)
    batch = given.number(_BATCH, 1) or 1.0
    ahead = given.number("orchestrator.max_inflight_rollouts") or batch * (
        given.number("orchestrator.oversampling_factor", 1) or 1
    )
    deepest = ahead / batch + given.number("max_async_level")
    words = (
        "groups that would become too old are thrown away, long answers most often; ScaleRL paces generation instead"
    )
    notes: Notes = {"discards": ("pipeline", words)}
    if deepest < most:
        words = f"rollouts in flight are {ahead / batch:.2g} batches: at an even pace no group gets older than about "
        words += f"{deepest:.2g} steps, so that a bound of {most:g} hardly ever acts; with "
        words += f"{batch * (most + 1):g} rollouts in flight it can"
        notes["lag_cannot_bind"] = ("pipeline.max_lag", words)
    return {
        "loss.name": given.get("trainer.loss.type"),
        "weights.name": "token",
        "advantage.normalisation.name": "none",
        "model.fp32_head": _head(fp32_head("trainer"), fp32_head("inference")),
        "filter.zero_variance": bool(filtered),
        "curriculum.name": "no_positive_resampling" if easy else "uniform",
        "pipeline.max_lag": int(most),
        "learner.start_kl": given.number("trainer.loss.kl_tau"),
    }, notes


class Framework(NamedTuple):
    ours: Callable[[Reader], tuple[Settings, Notes]]
    known_by: tuple[str, ...]
    """Keys, or tables, that only this framework has."""
    settings: Mapping[str, tuple[Any, str]]
    """Their key -> its default, and our settings that it becomes; those that `ours` does not have take its value."""
    changes: Mapping[str, str]
    """What to set against each kind of difference."""


FRAMEWORKS: dict[str, Framework] = {
    "trl": Framework(
        _trl,
        ("loss_type", "num_generations", "scale_rewards", "epsilon_high", "max_completion_length", "num_iterations"),
        {
            "loss_type": ("dapo", "loss.name weights.name"),
            "epsilon": (0.2, "loss.clip_low"),
            "epsilon_high": (None, "loss.clip_high loss.cap"),
            "scale_rewards": ("group", "advantage.normalisation.name"),
            "cast_lm_head_to_fp32": (False, "model.fp32_head"),
            "num_iterations": (1, "pipeline.push_every"),
            "mask_truncated_completions": (False, "filter.drop_truncated"),
            "max_completion_length": (256, "length.max_length"),
            "beta": (0.0, "learner.start_kl"),
            "num_generations": (8, "pipeline.completions_per_group"),
            "temperature": (1.0, "rollout.temperature"),
            "learning_rate": (1e-06, "optimizer.lr"),
            "importance_sampling_level": ("token", ""),
            "use_vllm": (False, ""),
            "steps_per_generation": (None, ""),
            "gradient_accumulation_steps": (1, ""),
        },
        {
            "loss.name": 'loss_type="cispo", epsilon_high=5.0',
            "loss.cap": "epsilon_high=5.0",
            "cap_too_low": "epsilon_high=5.0",
            "advantage.normalisation.name": 'scale_rewards="batch"',
            "learner.start_kl": "beta=0.0",
            "filter.drop_truncated": "mask_truncated_completions=True",
            "model.fp32_head": "cast_lm_head_to_fp32=True, and the head of vLLM in FP32 too",
            "clip_never_acts": "num_iterations=2 or more steps_per_generation, where off-policy steps are wanted",
        },
    ),
    "verl": Framework(
        _verl,
        ("actor_rollout_ref", "algorithm.adv_estimator", "data.train_batch_size", "async_training"),
        {
            f"{_ACTOR}.policy_loss.loss_mode": ("vanilla", "loss.name"),
            f"{_ACTOR}.clip_ratio_low": (0.2, "loss.clip_low"),
            f"{_ACTOR}.clip_ratio_high": (0.2, "loss.clip_high loss.cap"),
            f"{_ACTOR}.loss_agg_mode": ("token-mean", "weights.name"),
            "algorithm.adv_estimator": ("gae", "advantage.baseline.name advantage.normalisation.name"),
            "algorithm.filter_groups.enable": (False, "filter.zero_variance"),
            f"{_ACTOR}.ppo_mini_batch_size": (256, "pipeline.push_every"),
            "data.max_response_length": (512, "length.max_length"),
            f"{_ACTOR}.kl_loss_coef": (0.001, "learner.start_kl"),
            f"{_ROLLOUT}.n": (1, "pipeline.completions_per_group"),
            f"{_ROLLOUT}.temperature": (1.0, "rollout.temperature"),
            f"{_ACTOR}.optim.lr": (1e-06, "optimizer.lr"),
            _STALE: (None, ""),
            f"{_ACTOR}.ppo_epochs": (1, ""),
            f"{_ACTOR}.use_kl_loss": (False, ""),
            "algorithm.norm_adv_by_std_in_grpo": (True, ""),
            "algorithm.rollout_correction.bypass_mode": (False, ""),
            "data.train_batch_size": (1024, ""),
        },
        {
            "loss.name": f"{_ACTOR}.policy_loss.loss_mode=cispo {_ACTOR}.clip_ratio_high=4 {_ACTOR}.clip_ratio_low=1",
            "loss.cap": f"{_ACTOR}.clip_ratio_high=4: the cap is 1 + clip_ratio_high",
            "floor": f"{_ACTOR}.clip_ratio_low=1",
            "advantage.normalisation.name": "algorithm.adv_estimator=reinforce_plus_plus_baseline",
            "filter.zero_variance": "algorithm.filter_groups.enable=True",
            "learner.start_kl": f"{_ACTOR}.use_kl_loss=False",
            "anchor": "algorithm.rollout_correction.bypass_mode=True",
            "clip_never_acts": "algorithm.rollout_correction.bypass_mode=True",
            "pipeline.drain": f"the fully asynchronous trainer: {_STALE}, async_training.partial_rollout",
        },
    ),
    "prime-rl": Framework(
        _prime_rl,
        ("orchestrator", "trainer.loss", "inference.model", "trainer.model"),
        {
            "trainer.loss.type": ("default", ""),  # none of its losses is one of ours
            "trainer.model.fp32_lm_head": (None, "model.fp32_head"),
            "trainer.optim.lr": (1e-06, "optimizer.lr"),
            _MOST: (8, "pipeline.max_lag"),
            "orchestrator.group_size": (8, "pipeline.completions_per_group"),
            "orchestrator.rollouts_per_example": (None, "pipeline.completions_per_group"),
            "orchestrator.sampling.temperature": (1.0, "rollout.temperature"),
            "trainer.loss.kl_tau": (0.001, "learner.start_kl"),
            "max_async_level": (1, ""),
            _BATCH: (128, ""),
            "orchestrator.oversampling_factor": (1.0, ""),
        },
        {
            "loss.name": 'trainer.loss.type = "custom" with a CISPO of your own',
            "learner.start_kl": "trainer.loss.kl_tau = 0",
            "model.fp32_head": "an FP32 head in both [trainer.model] and [inference.model]",
            "filter.zero_variance": 'a filter of type "zero_advantage" in [orchestrator]',
            "curriculum.name": "orchestrator.buffer.easy_threshold = 0.9",
            "pipeline.max_lag": f"{_MOST} = 8",
            "lag_cannot_bind": "orchestrator.max_inflight_rollouts",
        },
    ),
}


def check_recipe(path: Path, framework: str | None = None) -> Checked:
    """Return how a configuration translates to our recipe, and where it differs from ScaleRL."""
    settings = read_settings(path)
    name = framework or _recognised(settings, path)
    chosen = FRAMEWORKS[name]
    given = Reader(settings, {key: default for key, (default, _) in chosen.settings.items()})
    # What none of these frameworks has, if it says nothing of it.
    own, notes = chosen.ours(given)
    ours = {"curriculum.name": "uniform", "length.name": "none"} | own
    translations = (
        Translation(
            theirs=theirs, value=given.get(theirs), is_default=settings.get(theirs) is None, ours=key,
            our_value=ours[key] if key in ours else given.get(theirs),
        )
        for theirs, (_, keys) in chosen.settings.items()
        for key in keys.split()
    )  # fmt: skip
    differences = (
        Difference(kind=kind, ours=key, statement=words, change=chosen.changes.get(kind, ""))
        for kind, key, words in _differences(ours, notes)
    )
    return Checked(
        framework=name,
        # What a framework does not have, or its loss does not take, corresponds to nothing.
        translations=tuple(row for row in translations if row.our_value is not None),
        differences=tuple(differences),
        not_read=tuple(key for key in settings if key not in given.read),
    )


def _differences(ours: Settings, notes: Notes) -> Iterator[tuple[str, str, str]]:
    """Yield the kind of each difference from ScaleRL, our setting, and a sentence."""
    scalerl = settings_of(load_recipe("scalerl"))
    for key, does in SCALERL.items():
        value = ours.get(key)
        if value is not None and value != scalerl[key].value:
            yield key, key, f"{key} is {json.dumps(value)}; ScaleRL {does}"
    yield from ((kind, key, words) for kind, (key, words) in notes.items())


def _recognised(settings: Mapping[str, Any], path: Path) -> str:
    counts = {
        name: sum(any(key == known or key.startswith(f"{known}.") for known in each.known_by) for key in settings)
        for name, each in FRAMEWORKS.items()
    }
    best = max(counts, key=lambda name: counts[name])
    if not counts[best]:
        raise UsageError(
            f"{path} has no setting that verl, TRL or prime-rl is known by: say which it is with --framework"
        )
    return best


def read_settings(path: Path) -> dict[str, Any]:
    """Return the settings of a file by dotted key: YAML, TOML, JSON, Python with GRPOConfig(...), or arguments."""
    parsers = {".yaml": _yaml, ".yml": _yaml, ".py": _python, ".toml": None, ".json": None}
    parse = parsers.get(path.suffix.lower(), _arguments)
    return dict(leaves(read_table(str(path), path, UsageError, parse), numbered=True))


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ModuleNotFoundError:
        raise UsageError("a YAML file needs PyYAML: pip install pyyaml") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as fault:
        raise ValueError(" ".join(str(fault).split())) from None


def _python(text: str) -> dict[str, Any]:
    """Return the keyword arguments of GRPOConfig(...) that are constants; the file is not run."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("GRPOConfig"):
            found: dict[str, Any] = {}
            for name, value in ((word.arg, word.value) for word in node.keywords if word.arg):
                with suppress(ValueError):  # not a constant
                    found[name] = ast.literal_eval(value)
            return found
    raise ValueError("it has no GRPOConfig(...): give a file that makes one, or the arguments as YAML")


def _arguments(text: str) -> dict[str, Any]:
    """Return key=value overrides (Hydra) and --key value arguments of a command or script."""
    words = shlex.split(text.replace("\\\n", " "), comments=True)
    settings: dict[str, Any] = {}
    for word, after in zip(words, [*words[1:], "--"], strict=True):
        if match := re.fullmatch(r"(?:--|\+{1,2})?([A-Za-z_][\w./-]*)=(.*)", word, re.DOTALL):
            settings[match[1].replace("-", "_")] = _value(match[2])
        elif word.startswith("--") and len(word) > 2:
            settings[word[2:].replace("-", "_")] = True if after.startswith("--") else _value(after)
    return settings


def _value(text: str) -> Any:
    words = {"true": True, "false": False, "null": None, "none": None}
    try:
        return words[text.lower()] if text.lower() in words else ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
