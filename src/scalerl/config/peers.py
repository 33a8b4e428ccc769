"""Recipes of other frameworks (`scalerl recipe check`) in our terms, and where they differ from ScaleRL.

    file -> settings by dotted key -> FRAMEWORKS: facts in our terms -> DIFFERENCES: one table for all frameworks

Each framework has a function that returns facts in our terms, such as the cap of its loss or what happens to groups
without variance. What differs from ScaleRL is decided from those alone. Written for TRL 1.16, verl's ppo_trainer and
prime-rl's rl.toml. Nothing of a file is run.
"""

import ast
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from scalerl.config.load import read_table
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
    """A kind of DIFFERENCES."""
    ours: str
    """The axis of our recipe."""
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


Facts = dict[str, Any]
"""loss, loss_words, cap, relative, floor, average, norm, baseline, head, groups, easy, truncated, cut_at, round (steps
on one batch of completions; None if it streams), anchor, lag, lag_words, deepest, in_flight, start_kl."""

_NO_FACTS: Facts = {
    "baseline": "mean", "cap": None, "relative": False, "floor": 0.0, "easy": "return", "truncated": "", "round": None,
    "anchor": "generator", "lag": None, "lag_words": "", "deepest": None, "in_flight": None, "discards": False,
    "start_kl": 0.0,
}  # fmt: skip
_HEADS = {(True, True): "both", (True, False): "learner", (False, True): "generator", (False, False): "none"}
_DIVIDED_BY = {"prompt": "each group's standard deviation", "none": "nothing"}


def _trl(given: Reader) -> Facts:
    """Its ratio is against log-probs recomputed by the learner, which at one step per generation are its own."""
    name, low = str(given.get("loss_type")), given.number("epsilon", 0.2)
    high = given.number("epsilon_high", low)
    sequence = given.get("importance_sampling_level") == "sequence"
    cast, vllm = given.flag("cast_lm_head_to_fp32"), given.flag("use_vllm")
    accumulation = given.number("gradient_accumulation_steps", 1) or 1
    per_generation = given.number("steps_per_generation") or accumulation
    return {
        "loss": "cispo" if name == "cispo" else "gspo" if sequence else "dapo",
        "loss_words": f"{name} clips tokens, which then",
        "cap": high if name == "cispo" else None,
        "clip_low": low,
        "clip_high": high,
        "average": {"grpo": "sample", "dr_grpo": "constant"}.get(name, "token"),
        "norm": {"batch": "batch", "none": "none", "False": "none"}.get(str(given.get("scale_rewards")), "prompt"),
        "head": _HEADS[cast, cast and not vllm],
        "groups": "kept",
        "truncated": "dropped" if given.flag("mask_truncated_completions") else "kept",
        "cut_at": "max_completion_length",
        "round": max(round(given.number("num_iterations", 1) * per_generation / accumulation), 1),
        "anchor": "learner",
        "start_kl": given.number("beta"),
    }


_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
_STALE = "async_training.staleness_threshold"


def _verl(given: Reader) -> Facts:
    """The cap of its CISPO is 1 + clip_ratio_high, with a floor of 1 - clip_ratio_low."""
    name, advantage = str(given.get(f"{_ACTOR}.policy_loss.loss_mode")), str(given.get("algorithm.adv_estimator"))
    low, high = given.number(f"{_ACTOR}.clip_ratio_low"), given.number(f"{_ACTOR}.clip_ratio_high")
    by_std = given.flag("algorithm.norm_adv_by_std_in_grpo")
    batch, mini = given.number("data.train_batch_size", 1), given.number(f"{_ACTOR}.ppo_mini_batch_size", 1) or 1
    stale = given.get(_STALE)
    averages = {"token-mean": "token", "seq-mean-token-mean": "sample"}
    coefficient, uses_kl = given.number(f"{_ACTOR}.kl_loss_coef"), given.flag(f"{_ACTOR}.use_kl_loss")
    return {
        "loss": name if name in ("cispo", "gspo") else "dapo",
        "loss_words": f"{name} clips tokens, which then",
        "cap": 1 + high if name == "cispo" else None,
        "relative": True,
        "floor": max(1 - low, 0.0) if name == "cispo" else 0.0,
        "clip_low": low,
        "clip_high": high,
        "average": averages.get(str(given.get(f"{_ACTOR}.loss_agg_mode")), "constant"),
        "norm": "batch" if advantage.startswith("reinforce_plus_plus")
        else "prompt" if advantage == "grpo" and by_std else "none",
        "baseline": "leave_one_out" if advantage == "rloo" else "mean",
        "head": "none",
        "groups": "refilled" if given.flag("algorithm.filter_groups.enable") else "kept",
        "cut_at": "data.max_response_length",
        "round": max(round(batch / mini * given.number(f"{_ACTOR}.ppo_epochs", 1)), 1) if stale is None else None,
        "anchor": "generator" if given.flag("algorithm.rollout_correction.bypass_mode") else "learner",
        "lag": None if stale is None else max(round(given.number(_STALE)), 0),
        "lag_words": f"staleness_threshold = {stale} limits the share of stale samples, not how old one may be",
        "start_kl": coefficient if uses_kl else 0.0,
    }  # fmt: skip


_MOST, _BATCH = "orchestrator.max_off_policy_steps", "orchestrator.batch_size"


def _prime_rl(given: Reader) -> Facts:
    """Its ratio is against the generator's log-probs. Groups that are too old are thrown away rather than avoided."""
    name, most, keys = str(given.get("trainer.loss.type")), given.number(_MOST), list(given.settings)
    low, high = given.get("trainer.loss.dppo_mask_low"), given.get("trainer.loss.dppo_mask_high")

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
    return {
        "loss": "cispo" if name == "cispo" else "-",
        "loss_words": f"tokens whose probability moved by more than {low} or {high} are masked and",
        "average": "token",
        "norm": "none",
        "head": _HEADS[fp32_head("trainer"), fp32_head("inference")],
        "groups": "dropped" if filtered else "kept",
        "easy": "leave" if easy else "return",
        "cut_at": "the length limit",
        "lag": int(most),
        "lag_words": f"groups may be {most:g} steps old",
        "discards": True,
        "in_flight": ahead / batch,
        "deepest": ahead / batch + given.number("max_async_level"),
        "bindable": round(batch * (most + 1)),
        "start_kl": given.number("trainer.loss.kl_tau"),
    }


class Framework(NamedTuple):
    facts: Callable[[Reader], Facts]
    known_by: tuple[str, ...]
    """Keys, or tables, that only this framework has."""
    defaults: Mapping[str, Any]
    translations: Mapping[str, str]
    """Their key -> ours; "=NAME" after ours takes that fact as the value, or else the value is taken as it is."""
    changes: Mapping[str, str]
    """What to set against each kind of difference; facts in braces."""


FRAMEWORKS: dict[str, Framework] = {
    "trl": Framework(
        _trl,
        ("loss_type", "num_generations", "scale_rewards", "epsilon_high", "max_completion_length", "num_iterations"),
        {
            "loss_type": "dapo", "epsilon": 0.2, "importance_sampling_level": "token", "scale_rewards": "group",
            "cast_lm_head_to_fp32": False, "use_vllm": False, "num_iterations": 1, "steps_per_generation": None,
            "gradient_accumulation_steps": 1, "mask_truncated_completions": False, "beta": 0.0, "num_generations": 8,
            "temperature": 1.0, "learning_rate": 1e-6, "max_completion_length": 256,
        },
        {
            "loss_type": "loss.name=loss weights.name=average",
            "epsilon": "loss.clip_low=clip_low",
            "epsilon_high": "loss.clip_high=clip_high loss.cap=cap",
            "scale_rewards": "advantage.normalisation.name=norm",
            "cast_lm_head_to_fp32": "model.fp32_head=head",
            "num_iterations": "pipeline.push_every=round",
            "mask_truncated_completions": "filter.drop_truncated",
            "max_completion_length": "length.max_length",
            "beta": "learner.start_kl=start_kl",
            "num_generations": "pipeline.completions_per_group",
            "temperature": "rollout.temperature",
            "learning_rate": "optimizer.lr",
        },
        {
            "loss": 'loss_type="cispo", epsilon_high=5.0', "cap": "epsilon_high=5.0", "cap_too_low": "epsilon_high=5.0",
            "normalisation": 'scale_rewards="batch"', "start_kl": "beta=0.0",
            "truncated_kept": "mask_truncated_completions=True",
            "fp32_head": "cast_lm_head_to_fp32=True, and the head of vLLM in FP32 too",
            "fp32_one_side": "start vLLM with an FP32 head, or cast_lm_head_to_fp32=False",
            "clip_never_acts": "num_iterations=2 or more steps_per_generation, where off-policy steps are wanted",
        },
    ),
    "verl": Framework(
        _verl,
        ("actor_rollout_ref", "algorithm.adv_estimator", "data.train_batch_size", "async_training"),
        {
            f"{_ACTOR}.policy_loss.loss_mode": "vanilla", f"{_ACTOR}.loss_agg_mode": "token-mean",
            f"{_ACTOR}.clip_ratio_low": 0.2, f"{_ACTOR}.clip_ratio_high": 0.2, f"{_ACTOR}.ppo_epochs": 1,
            f"{_ACTOR}.ppo_mini_batch_size": 256, f"{_ACTOR}.use_kl_loss": False, f"{_ACTOR}.kl_loss_coef": 0.001,
            f"{_ACTOR}.optim.lr": 1e-6, f"{_ROLLOUT}.n": 1, f"{_ROLLOUT}.temperature": 1.0,
            "algorithm.adv_estimator": "gae", "algorithm.norm_adv_by_std_in_grpo": True,
            "algorithm.rollout_correction.bypass_mode": False, "algorithm.filter_groups.enable": False,
            "data.train_batch_size": 1024, "data.max_response_length": 512,
        },
        {
            f"{_ACTOR}.policy_loss.loss_mode": "loss.name=loss",
            f"{_ACTOR}.clip_ratio_low": "loss.clip_low=clip_low",
            f"{_ACTOR}.clip_ratio_high": "loss.clip_high=clip_high loss.cap=cap",
            f"{_ACTOR}.loss_agg_mode": "weights.name=average",
            "algorithm.adv_estimator": "advantage.baseline.name=baseline advantage.normalisation.name=norm",
            "algorithm.filter_groups.enable": "filter.zero_variance",
            f"{_ACTOR}.ppo_mini_batch_size": "pipeline.push_every=round",
            _STALE: "pipeline.max_lag=lag",
            "data.max_response_length": "length.max_length",
            f"{_ACTOR}.kl_loss_coef": "learner.start_kl=start_kl",
            f"{_ROLLOUT}.n": "pipeline.completions_per_group",
            f"{_ROLLOUT}.temperature": "rollout.temperature",
            f"{_ACTOR}.optim.lr": "optimizer.lr",
        },
        {
            "loss": f"{_ACTOR}.policy_loss.loss_mode=cispo {_ACTOR}.clip_ratio_high=4 {_ACTOR}.clip_ratio_low=1",
            "cap_relative": f"{_ACTOR}.clip_ratio_high=4", "cap": f"{_ACTOR}.clip_ratio_low=1",
            "normalisation": "algorithm.adv_estimator=reinforce_plus_plus_baseline",
            "no_zero_variance_filter": "algorithm.filter_groups.enable=True",
            "start_kl": f"{_ACTOR}.use_kl_loss=False",
            "anchor": "algorithm.rollout_correction.bypass_mode=True",
            "clip_never_acts": "algorithm.rollout_correction.bypass_mode=True",
            "not_streaming": "the fully asynchronous trainer: async_training.staleness_threshold, "
            "async_training.partial_rollout",
        },
    ),
    "prime-rl": Framework(
        _prime_rl,
        ("orchestrator", "trainer.loss", "inference.model", "trainer.model"),
        {
            "trainer.loss.type": "default", "trainer.loss.dppo_mask_low": 0.2, "trainer.loss.dppo_mask_high": 0.2,
            "trainer.loss.kl_tau": 1e-3, "trainer.optim.lr": 1e-6, _MOST: 8, "max_async_level": 1, _BATCH: 128,
            "orchestrator.group_size": 8, "orchestrator.oversampling_factor": 1.0,
            "orchestrator.sampling.temperature": 1.0,
        },
        {
            "trainer.loss.type": "loss.name=loss",
            "trainer.model.fp32_lm_head": "model.fp32_head=head",
            "trainer.optim.lr": "optimizer.lr",
            _MOST: "pipeline.max_lag=lag",
            "orchestrator.group_size": "pipeline.completions_per_group",
            "orchestrator.rollouts_per_example": "pipeline.completions_per_group",
            "orchestrator.sampling.temperature": "rollout.temperature",
        },
        {
            "loss": 'trainer.loss.type = "custom" with a CISPO of your own', "start_kl": "trainer.loss.kl_tau = 0",
            "fp32_one_side": "the same for the other of [trainer.model] and [inference.model]",
            "no_zero_variance_filter": 'a filter of type "zero_advantage" in [orchestrator]',
            "no_curriculum": "orchestrator.buffer.easy_threshold = 0.9", "lag": f"{_MOST} = 8",
            "lag_cannot_bind": "orchestrator.max_inflight_rollouts = {bindable} for the lag that the bound allows",
        },
    ),
}  # fmt: skip


class _Kind(NamedTuple):
    ours: str
    differs: Callable[[Facts], bool]
    sentence: str


DIFFERENCES: dict[str, _Kind] = {
    "loss": _Kind(
        "loss",
        lambda f: f["loss"] != "cispo",
        "{loss_words} lose their gradient; ScaleRL's CISPO caps their ratio at 5 and keeps it",
    ),
    "cap_relative": _Kind(
        "loss.cap",
        lambda f: f["cap"] is not None and f["relative"] and f["cap"] != 5,
        "the cap is 1 + clip_ratio_high = {cap:g}; ScaleRL's absolute cap of 5 is clip_ratio_high = 4",
    ),
    "cap_too_low": _Kind(
        "loss.cap",
        lambda f: f["cap"] is not None and not f["relative"] and f["cap"] < 1,
        "the cap is absolute here, and {cap:g} lies below 1: every ratio is cut to {cap:g}, which only scales the "
        "learning rate",
    ),
    "cap": _Kind(
        "loss.cap",
        lambda f: f["cap"] is not None and (f["floor"] > 0 or (not f["relative"] and f["cap"] >= 1 and f["cap"] != 5)),
        "ratios are kept between {floor:g} and {cap:g}; ScaleRL's CISPO has no floor, and 4 to 8 did alike as caps",
    ),
    "average": _Kind(
        "weights",
        lambda f: f["average"] != "prompt",
        'the loss is averaged as weights = "{average}"; ScaleRL averages over the tokens of each prompt, then over '
        "prompts",
    ),
    "normalisation": _Kind(
        "advantage.normalisation",
        lambda f: f["norm"] != "batch",
        "advantages are divided by {divided_by}, not by the batch's standard deviation",
    ),
    "fp32_head": _Kind(
        "model.fp32_head",
        lambda f: f["head"] == "none",
        "the head is computed in the body's precision at both ends",
    ),
    "fp32_one_side": _Kind(
        "model.fp32_head",
        lambda f: f["head"] in ("learner", "generator"),
        "the head is in FP32 at the {head} only: one side alone can be worse than none",
    ),
    "no_zero_variance_filter": _Kind(
        "filter.zero_variance",
        lambda f: f["groups"] == "kept",
        "groups whose rewards are all equal stay in the batch and in the loss's denominator",
    ),
    "refills": _Kind(
        "filter.zero_variance",
        lambda f: f["groups"] == "refilled",
        "groups without variance are replaced by sampling more, which costs compute; ScaleRL drops them",
    ),
    "no_curriculum": _Kind(
        "curriculum",
        lambda f: f["easy"] == "return",
        "problems that are solved nearly always keep returning (no-positive-resampling)",
    ),
    "no_interruption": _Kind("length", lambda f: True, "thinking is cut off at {cut_at}, not interrupted"),
    "truncated_kept": _Kind(
        "filter.drop_truncated", lambda f: f["truncated"] == "kept", "answers that were cut off are trained on"
    ),
    "not_streaming": _Kind(
        "pipeline",
        lambda f: f["round"] is not None,
        "generation and training take turns, {round} steps on each batch of completions; ScaleRL streams "
        "(PipelineRL-8)",
    ),
    "clip_never_acts": _Kind(
        "loss",
        lambda f: f["anchor"] == "learner" and f["round"] == 1,
        "with one step per generation the ratio is against the learner's own log-probs and always 1: neither clip nor "
        "cap ever acts",
    ),
    "anchor": _Kind(
        "loss",
        lambda f: f["anchor"] == "learner" and f["round"] != 1,
        "the ratio is against log-probs that the learner recomputed, not those that the generator sampled with",
    ),
    "lag": _Kind(
        "pipeline.max_lag",
        lambda f: f["lag"] is not None and (f["lag"] != 8 or not f["discards"]),
        "{lag_words}; ScaleRL bounds each group's age by 8 steps",
    ),
    "discards": _Kind(
        "pipeline",
        lambda f: f["discards"],
        "groups that would become too old are thrown away, long answers most often; ScaleRL paces generation instead",
    ),
    "lag_cannot_bind": _Kind(
        "pipeline.max_lag",
        lambda f: f["deepest"] is not None and f["lag"] > 0 and f["deepest"] < f["lag"],
        "rollouts in flight are {in_flight:.2g} batches: at an even pace no group gets older than about {deepest:.2g} "
        "steps, so that a bound of {lag} hardly ever acts",
    ),
    "start_kl": _Kind(
        "learner.start_kl", lambda f: f["start_kl"] > 0, "a KL term of {start_kl:g} holds the policy back"
    ),
}


def check_recipe(path: Path, framework: str | None = None) -> Checked:
    """Return how a configuration translates to our recipe, and where it differs from ScaleRL."""
    settings = read_settings(path)
    name = framework or _recognised(settings, path)
    chosen = FRAMEWORKS[name]
    given = Reader(settings, chosen.defaults)
    facts = _NO_FACTS | chosen.facts(given)
    facts["divided_by"] = _DIVIDED_BY.get(facts["norm"], "")
    translations = [
        Translation(
            theirs=theirs, value=given.get(theirs), is_default=settings.get(theirs) is None, ours=key,
            our_value=facts[fact] if fact else given.get(theirs),
        )
        for theirs, ours in chosen.translations.items()
        for key, _, fact in (text.partition("=") for text in ours.split())
    ]  # fmt: skip
    differences = [
        Difference(
            kind=kind,
            ours=row.ours,
            statement=row.sentence.format(**facts),
            change=chosen.changes.get(kind, "").format(**facts),
        )
        for kind, row in DIFFERENCES.items()
        if row.differs(facts)
    ]
    return Checked(
        framework=name,
        # What a framework does not have, or its loss does not take, corresponds to nothing.
        translations=tuple(row for row in translations if row.our_value is not None),
        differences=tuple(differences),
        not_read=tuple(key for key in settings if key not in given.read),
    )


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
    parsers = {".yaml": _yaml, ".yml": _yaml, ".py": _python}
    suffix = path.suffix.lower()
    return flat(
        read_table(
            str(path), path, UsageError, None if suffix in (".toml", ".json") else parsers.get(suffix, _arguments)
        )
    )


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
        name = getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""
        if isinstance(node, ast.Call) and name.endswith("GRPOConfig"):
            return {
                word.arg: ast.literal_eval(word.value)
                for word in node.keywords
                if word.arg is not None and _is_literal(word.value)
            }
    raise ValueError("it has no GRPOConfig(...): give a file that makes one, or the arguments as YAML")


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except ValueError:
        return False
    return True


def _arguments(text: str) -> dict[str, Any]:
    """Return key=value overrides (Hydra) and --key value arguments of a command or script."""
    words = shlex.split(text.replace("\\\n", " "), comments=True)
    settings: dict[str, Any] = {}
    for at, word in enumerate(words):
        if match := re.fullmatch(r"(?:--|\+{1,2})?([A-Za-z_][\w./-]*)=(.*)", word, re.DOTALL):
            settings[match[1].replace("-", "_")] = _value(match[2])
        elif word.startswith("--") and len(word) > 2:
            after = words[at + 1] if at + 1 < len(words) else "--"
            settings[word[2:].replace("-", "_")] = True if after.startswith("--") else _value(after)
    return settings


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False, "null": None, "none": None}.get(text.lower(), text)


def flat(tree: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as dotted keys; a list of tables by number."""
    settings: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            for number, item in enumerate(value):
                settings |= flat(item, f"{name}.{number}.")
        elif isinstance(value, Mapping):
            settings |= flat(value, f"{name}.")
        else:
            settings[name] = value
    return settings
