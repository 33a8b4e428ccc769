"""Recipes of other frameworks (`scalerl recipe check`) in our terms, and where they differ from ScaleRL.

    file -> settings by dotted key -> FRAMEWORKS: facts in our terms -> differences: the same for all frameworks

Each framework has a function that returns facts in our terms, such as the cap of its loss or what happens to groups
without variance. What differs from ScaleRL is decided from those alone. Written for TRL 1.16, verl's ppo_trainer and
prime-rl's rl.toml. Nothing of a file is run.
"""

import ast
import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from scalerl.config.keys import leaves
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
    """As `differences` calls it."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A recipe in our terms. Defaults are what a framework has that says nothing of it."""

    loss: str
    loss_words: str
    """What happens to tokens that are clipped, as the beginning of a sentence."""
    cap: float | None = None
    relative: bool = False
    """Whether their setting of the cap is relative to 1."""
    floor: float = 0.0
    clip_low: float | None = None
    clip_high: float | None = None
    average: str
    norm: str
    baseline: str = "mean"
    head: str
    groups: str
    """What happens to groups without variance: "kept", "dropped" or "refilled"."""
    easy_return: bool = True
    truncated_kept: bool = False
    cut_at: str
    """The setting at which thinking is cut off."""
    round: int | None = None
    """Steps on one batch of completions; None if it streams."""
    anchor: str = "generator"
    """Whose log-probs the ratio is against."""
    lag: int | None = None
    lag_words: str = ""
    discards: bool = False
    in_flight: float = 0.0
    """Batches of rollouts that are sampled at a time."""
    deepest: float = math.inf
    """The age of groups at an even pace."""
    bindable: int = 0
    """Rollouts in flight with which the bound on the lag can be reached."""
    start_kl: float


_HEADS = {(True, True): "both", (True, False): "learner", (False, True): "generator", (False, False): "none"}


def _trl(given: Reader) -> Facts:
    """Its ratio is against log-probs recomputed by the learner, which at one step per generation are its own."""
    name, low = str(given.get("loss_type")), given.number("epsilon", 0.2)
    high = given.number("epsilon_high", low)
    sequence = given.get("importance_sampling_level") == "sequence"
    cast, vllm = given.flag("cast_lm_head_to_fp32"), given.flag("use_vllm")
    accumulation = given.number("gradient_accumulation_steps", 1) or 1
    per_generation = given.number("steps_per_generation") or accumulation
    return Facts(
        loss="cispo" if name == "cispo" else "gspo" if sequence else "dapo",
        loss_words=f"{name} clips tokens, which then",
        cap=high if name == "cispo" else None,
        clip_low=low,
        clip_high=high,
        average={"grpo": "sample", "dr_grpo": "constant"}.get(name, "token"),
        norm={"batch": "batch", "none": "none", "False": "none"}.get(str(given.get("scale_rewards")), "prompt"),
        head=_HEADS[cast, cast and not vllm],
        groups="kept",
        truncated_kept=not given.flag("mask_truncated_completions"),
        cut_at="max_completion_length",
        round=max(round(given.number("num_iterations", 1) * per_generation / accumulation), 1),
        anchor="learner",
        start_kl=given.number("beta"),
    )


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
    return Facts(
        loss=name if name in ("cispo", "gspo") else "dapo",
        loss_words=f"{name} clips tokens, which then",
        cap=1 + high if name == "cispo" else None,
        relative=True,
        floor=max(1 - low, 0.0) if name == "cispo" else 0.0,
        clip_low=low,
        clip_high=high,
        average=averages.get(str(given.get(f"{_ACTOR}.loss_agg_mode")), "constant"),
        norm="batch"
        if advantage.startswith("reinforce_plus_plus")
        else "prompt"
        if advantage == "grpo" and by_std
        else "none",
        baseline="leave_one_out" if advantage == "rloo" else "mean",
        head="none",
        groups="refilled" if given.flag("algorithm.filter_groups.enable") else "kept",
        cut_at="data.max_response_length",
        round=max(round(batch / mini * given.number(f"{_ACTOR}.ppo_epochs", 1)), 1) if stale is None else None,
        anchor="generator" if given.flag("algorithm.rollout_correction.bypass_mode") else "learner",
        lag=None if stale is None else max(round(given.number(_STALE)), 0),
        lag_words=f"staleness_threshold = {stale} limits the share of stale samples, not how old one may be",
        start_kl=coefficient if uses_kl else 0.0,
    )


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
    return Facts(
        loss="cispo" if name == "cispo" else "-",
        loss_words=f"tokens whose probability moved by more than {low} or {high} are masked and",
        average="token",
        norm="none",
        head=_HEADS[fp32_head("trainer"), fp32_head("inference")],
        groups="dropped" if filtered else "kept",
        easy_return=not easy,
        cut_at="the length limit",
        lag=int(most),
        lag_words=f"groups may be {most:g} steps old",
        discards=True,
        in_flight=ahead / batch,
        deepest=ahead / batch + given.number("max_async_level"),
        bindable=round(batch * (most + 1)),
        start_kl=given.number("trainer.loss.kl_tau"),
    )


class Framework(NamedTuple):
    facts: Callable[[Reader], Facts]
    known_by: tuple[str, ...]
    """Keys, or tables, that only this framework has."""
    settings: Mapping[str, tuple[Any, str]]
    """Their key -> its default, and our keys; "=NAME" after ours takes that fact as the value, or else the value is
    taken as it is."""
    changes: Mapping[str, str]
    """What to set against each kind of difference; facts in braces."""


FRAMEWORKS: dict[str, Framework] = {
    "trl": Framework(
        _trl,
        ("loss_type", "num_generations", "scale_rewards", "epsilon_high", "max_completion_length", "num_iterations"),
        {
            "loss_type": ("dapo", "loss.name=loss weights.name=average"),
            "epsilon": (0.2, "loss.clip_low=clip_low"),
            "epsilon_high": (None, "loss.clip_high=clip_high loss.cap=cap"),
            "scale_rewards": ("group", "advantage.normalisation.name=norm"),
            "cast_lm_head_to_fp32": (False, "model.fp32_head=head"),
            "num_iterations": (1, "pipeline.push_every=round"),
            "mask_truncated_completions": (False, "filter.drop_truncated"),
            "max_completion_length": (256, "length.max_length"),
            "beta": (0.0, "learner.start_kl=start_kl"),
            "num_generations": (8, "pipeline.completions_per_group"),
            "temperature": (1.0, "rollout.temperature"),
            "learning_rate": (1e-06, "optimizer.lr"),
            "importance_sampling_level": ("token", ""),
            "use_vllm": (False, ""),
            "steps_per_generation": (None, ""),
            "gradient_accumulation_steps": (1, ""),
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
            f"{_ACTOR}.policy_loss.loss_mode": ("vanilla", "loss.name=loss"),
            f"{_ACTOR}.clip_ratio_low": (0.2, "loss.clip_low=clip_low"),
            f"{_ACTOR}.clip_ratio_high": (0.2, "loss.clip_high=clip_high loss.cap=cap"),
            f"{_ACTOR}.loss_agg_mode": ("token-mean", "weights.name=average"),
            "algorithm.adv_estimator": ("gae", "advantage.baseline.name=baseline advantage.normalisation.name=norm"),
            "algorithm.filter_groups.enable": (False, "filter.zero_variance"),
            f"{_ACTOR}.ppo_mini_batch_size": (256, "pipeline.push_every=round"),
            _STALE: (None, "pipeline.max_lag=lag"),
            "data.max_response_length": (512, "length.max_length"),
            f"{_ACTOR}.kl_loss_coef": (0.001, "learner.start_kl=start_kl"),
            f"{_ROLLOUT}.n": (1, "pipeline.completions_per_group"),
            f"{_ROLLOUT}.temperature": (1.0, "rollout.temperature"),
            f"{_ACTOR}.optim.lr": (1e-06, "optimizer.lr"),
            f"{_ACTOR}.ppo_epochs": (1, ""),
            f"{_ACTOR}.use_kl_loss": (False, ""),
            "algorithm.norm_adv_by_std_in_grpo": (True, ""),
            "algorithm.rollout_correction.bypass_mode": (False, ""),
            "data.train_batch_size": (1024, ""),
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
            "trainer.loss.type": ("default", "loss.name=loss"),
            "trainer.model.fp32_lm_head": (None, "model.fp32_head=head"),
            "trainer.optim.lr": (1e-06, "optimizer.lr"),
            _MOST: (8, "pipeline.max_lag=lag"),
            "orchestrator.group_size": (8, "pipeline.completions_per_group"),
            "orchestrator.rollouts_per_example": (None, "pipeline.completions_per_group"),
            "orchestrator.sampling.temperature": (1.0, "rollout.temperature"),
            "trainer.loss.dppo_mask_low": (0.2, ""),
            "trainer.loss.dppo_mask_high": (0.2, ""),
            "trainer.loss.kl_tau": (0.001, ""),
            "max_async_level": (1, ""),
            _BATCH: (128, ""),
            "orchestrator.oversampling_factor": (1.0, ""),
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


def differences(f: Facts) -> Iterator[tuple[str, str, str]]:
    """Yield the kind of each difference from ScaleRL, the axis of our recipe, and a sentence."""
    if f.loss != "cispo":
        words = f"{f.loss_words} lose their gradient; ScaleRL's CISPO caps their ratio at 5 and keeps it"
        yield "loss", "loss", words
    if f.cap is not None and f.relative and f.cap != 5:
        words = f"the cap is 1 + clip_ratio_high = {f.cap:g}; ScaleRL's absolute cap of 5 is clip_ratio_high = 4"
        yield "cap_relative", "loss.cap", words
    if f.cap is not None and not f.relative and f.cap < 1:
        words = f"the cap is absolute here, and {f.cap:g} lies below 1: every ratio is cut to {f.cap:g}, which only "
        yield "cap_too_low", "loss.cap", f"{words}scales the learning rate"
    elif f.cap is not None and (f.floor > 0 or (not f.relative and f.cap != 5)):
        words = f"ratios are kept between {f.floor:g} and {f.cap:g}; ScaleRL's CISPO has no floor, and 4 to 8 did "
        yield "cap", "loss.cap", f"{words}alike as caps"
    if f.average != "prompt":
        words = f'the loss is averaged as weights = "{f.average}"; ScaleRL averages over the tokens of each prompt, '
        yield "average", "weights", f"{words}then over prompts"
    if f.norm != "batch":
        by = "each group's standard deviation" if f.norm == "prompt" else "nothing"
        words = f"advantages are divided by {by}, not by the batch's standard deviation"
        yield "normalisation", "advantage.normalisation", words
    if f.head == "none":
        yield "fp32_head", "model.fp32_head", "the head is computed in the body's precision at both ends"
    elif f.head != "both":
        words = f"the head is in FP32 at the {f.head} only: one side alone can be worse than none"
        yield "fp32_one_side", "model.fp32_head", words
    if f.groups == "kept":
        words = "groups whose rewards are all equal stay in the batch and in the loss's denominator"
        yield "no_zero_variance_filter", "filter.zero_variance", words
    if f.groups == "refilled":
        words = "groups without variance are replaced by sampling more, which costs compute; ScaleRL drops them"
        yield "refills", "filter.zero_variance", words
    if f.easy_return:
        words = "problems that are solved nearly always keep returning (no-positive-resampling)"
        yield "no_curriculum", "curriculum", words
    yield "no_interruption", "length", f"thinking is cut off at {f.cut_at}, not interrupted"
    if f.truncated_kept:
        yield "truncated_kept", "filter.drop_truncated", "answers that were cut off are trained on"
    if f.round is not None:
        words = f"generation and training take turns, {f.round} steps on each batch of completions; ScaleRL streams "
        yield "not_streaming", "pipeline", f"{words}(PipelineRL-8)"
    if f.anchor == "learner" and f.round == 1:
        words = "with one step per generation the ratio is against the learner's own log-probs and always 1: neither "
        yield "clip_never_acts", "loss", f"{words}clip nor cap ever acts"
    elif f.anchor == "learner":
        words = "the ratio is against log-probs that the learner recomputed, not those that the generator sampled with"
        yield "anchor", "loss", words
    if f.lag is not None and (f.lag != 8 or not f.discards):
        yield "lag", "pipeline.max_lag", f"{f.lag_words}; ScaleRL bounds each group's age by 8 steps"
    if f.discards:
        words = "groups that would become too old are thrown away, long answers most often; ScaleRL paces generation "
        yield "discards", "pipeline", f"{words}instead"
    if f.lag is not None and f.lag > 0 and f.deepest < f.lag:
        words = f"rollouts in flight are {f.in_flight:.2g} batches: at an even pace no group gets older than about "
        words += f"{f.deepest:.2g} steps, so that a bound of {f.lag} hardly ever acts"
        yield "lag_cannot_bind", "pipeline.max_lag", words
    if f.start_kl > 0:
        yield "start_kl", "learner.start_kl", f"a KL term of {f.start_kl:g} holds the policy back"


def check_recipe(path: Path, framework: str | None = None) -> Checked:
    """Return how a configuration translates to our recipe, and where it differs from ScaleRL."""
    settings = read_settings(path)
    name = framework or _recognised(settings, path)
    chosen = FRAMEWORKS[name]
    given = Reader(settings, {key: default for key, (default, _) in chosen.settings.items()})
    facts = chosen.facts(given)
    translations = [
        Translation(
            theirs=theirs, value=given.get(theirs), is_default=settings.get(theirs) is None, ours=key,
            our_value=getattr(facts, fact) if fact else given.get(theirs),
        )
        for theirs, (_, ours) in chosen.settings.items()
        for key, _, fact in (text.partition("=") for text in ours.split())
    ]  # fmt: skip
    changes = {kind: text.format(bindable=facts.bindable) for kind, text in chosen.changes.items()}
    return Checked(
        framework=name,
        # What a framework does not have, or its loss does not take, corresponds to nothing.
        translations=tuple(row for row in translations if row.our_value is not None),
        differences=tuple(
            Difference(kind=kind, ours=ours, statement=words, change=changes.get(kind, ""))
            for kind, ours, words in differences(facts)
        ),
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
    parse = None if suffix in (".toml", ".json") else parsers.get(suffix, _arguments)
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
