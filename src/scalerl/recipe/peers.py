"""Translate recipes of other frameworks (`scalerl recipe check`) to our settings, and find differences from ScaleRL.

    file -> their settings by dotted key -> rows: our setting, theirs, its value -> rows that differ from ScaleRL

Each framework has a function that yields its rows. Written for TRL 1.16, verl's ppo_trainer and prime-rl's rl.toml.
Code in a file is never run.
"""

import ast
import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from scalerl.errors import UsageError
from scalerl.recipe.keys import Tree, is_at, leaves
from scalerl.recipe.load import load_recipe, read_table
from scalerl.recipe.tree import settings_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """A setting of another framework, and the corresponding setting of ours."""

    theirs: str
    """Key of their configuration."""
    value: Any
    is_default: bool
    """Whether it is their default, not set by the file."""
    ours: str
    """Key of our recipe."""
    our_value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One difference between a recipe and ScaleRL."""

    kind: str
    """Our setting that differs, or the kind of a note."""
    ours: str
    """The setting of ours that it concerns."""
    statement: str
    change: str
    """The change in their configuration; empty if the framework has no such setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A recipe of another framework, translated to our settings."""

    framework: str
    translations: tuple[Translation, ...]
    differences: tuple[Difference, ...]
    not_read: tuple[str, ...] = ()
    """Keys that are unknown here or do not concern ScaleRL's components."""


SCALERL = {
    "loss.name": "caps the ratio of a token at 5 and keeps its gradient (CISPO), where a clipped token loses it",
    "loss.cap": "has an absolute cap of 5; caps from 4 to 8 gave similar results",
    "correction.name": "has no correction of the generator's log-probs but the cap of its loss",
    "entropy.name": "has no entropy term",
    "weights.name": "averages over the tokens of each prompt, then over prompts",
    "advantage.normalisation.name": "divides advantages by the batch's standard deviation",
    "model.fp32_head": "computes the head in FP32 at generator and learner: one side alone can be worse than none",
    "filter.zero_variance": "drops groups whose rewards are all equal; otherwise, they stay in the loss's denominator",
    "filter.refill": "trains on what is left of a batch, where a refill samples more, which costs compute",
    "curriculum.name": "leaves out problems that are solved nearly always (no-positive-resampling)",
    "length.name": "interrupts thinking and lets the model answer, where others cut it off",
    "filter.drop_truncated": "does not train on answers that were cut off",
    "pipeline.drain": "trains while completions are generated (PipelineRL-8) instead of in turns with it",
    "pipeline.max_lag": "lets training be at most 8 steps ahead of generation",
    "kl.coefficient": "has no KL term that holds the policy back",
}
"""What ScaleRL does, by our setting for it."""


class Row(NamedTuple):
    """The value of our setting in their configuration; or, with a kind, a note on something without a setting here."""

    ours: str
    theirs: str = ""
    """Their setting; empty if they have none."""
    value: Any = None
    """The value of our setting; None if it does not apply."""
    change: str = ""
    """The change in their configuration to match ScaleRL; empty if they have no setting for it."""
    words: str = ""
    """The note, or a remark on the value of the setting."""
    kind: str = ""


class Reader:
    """Reads settings by dotted key, with the framework's defaults, and records which keys were read."""

    def __init__(self, settings: Tree, defaults: str) -> None:
        """`defaults` are written as TOML."""
        self.settings = dict(settings)
        self._defaults = dict(leaves(tomllib.loads(defaults)))
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        """Return a setting, or the framework's default, or None."""
        self.read.add(key)
        value = self.settings.get(key)
        return self._defaults.get(key) if value is None else value

    def number(self, key: str, otherwise: float = 0.0) -> float:
        value = self[key]
        if value is None or isinstance(value, bool):
            return otherwise
        try:
            return float(value)
        except (TypeError, ValueError):
            return otherwise

    def flag(self, key: str) -> bool:
        value = self[key]
        if isinstance(value, str):
            return value.strip().lower() in ("true", "1", "yes")
        return bool(value)


def _head(learner: bool, generator: bool) -> str:
    """Return model.fp32_head for a learner and a generator that do or do not compute the head in FP32."""
    if learner and generator:
        return "both"
    if learner:
        return "learner"
    return "generator" if generator else "none"


def _anchor(change: str, *, one_step: bool) -> Row:
    """Return a note that the ratio uses log-probs recomputed by the learner, not those of the generator."""
    if not one_step:
        words = "the ratio is against log-probs that the learner recomputed, not the generator's"
        return Row("loss", words=words, change=change, kind="anchor")
    words = "with one step per generation the ratio is against the learner's own log-probs and always 1: neither clip "
    return Row("loss", words=f"{words}nor cap ever acts", change=change, kind="clip_never_acts")


_SCALES_ONLY = "; the cap of TRL is absolute too, and below 1 it cuts every ratio, which only scales the learning rate"


def _trl(given: Reader) -> Iterator[Row]:
    """Yield TRL's rows. Its ratio uses log-probs recomputed by the learner; with one step per generation it is 1."""
    name = str(given["loss_type"])
    low = given.number("epsilon", 0.2)
    high = given.number("epsilon_high", low)
    is_cispo = name == "cispo"
    loss = "gspo" if given["importance_sampling_level"] == "sequence" else "dapo"
    weights = {"grpo": "sample", "dr_grpo": "constant"}.get(name, "token")
    yield Row("loss.name", "loss_type", name if is_cispo else loss, 'loss_type="cispo", epsilon_high=5.0')
    yield Row("weights.name", "loss_type", weights)
    if is_cispo:
        # Many give the 0.28 of a clip.
        remark = _SCALES_ONLY if high < 1 else ""
        yield Row("loss.cap", "epsilon_high", high, "epsilon_high=5.0", remark)
    else:
        yield Row("loss.clip_low", "epsilon", low)
        yield Row("loss.clip_high", "epsilon_high", high)
    norm = {"batch": "batch", "none": "none", "False": "none"}.get(str(given["scale_rewards"]), "prompt")
    yield Row("advantage.normalisation.name", "scale_rewards", norm, 'scale_rewards="batch"')
    cast = given.flag("cast_lm_head_to_fp32")
    vllm = given.flag("use_vllm")
    change = "cast_lm_head_to_fp32=True, and the head of vLLM in FP32 too"
    yield Row("model.fp32_head", "cast_lm_head_to_fp32", _head(cast, cast and not vllm), change)
    yield Row("filter.zero_variance", value=False)
    truncated = given.flag("mask_truncated_completions")
    change = "mask_truncated_completions=True"
    yield Row("filter.drop_truncated", "mask_truncated_completions", truncated, change)
    accumulation = given.number("gradient_accumulation_steps", 1) or 1
    per_generation = given.number("steps_per_generation") or accumulation
    steps = max(round(given.number("num_iterations", 1) * per_generation / accumulation), 1)
    yield Row("pipeline.push_every", "num_iterations", steps)
    yield Row("pipeline.drain", value=True)
    if vllm and given.flag("vllm_importance_sampling_correction"):
        mode = str(given["vllm_importance_sampling_mode"])
        cap = given.number("vllm_importance_sampling_cap")
        cap = given.number("vllm_importance_sampling_clip_max", cap)
        name = {"token_mask": "band", "token_truncate": "none"}.get(mode, mode)
        key = "vllm_importance_sampling_mode"
        change = 'vllm_importance_sampling_mode="token_truncate"'
        yield Row("correction.name", key, name, change)
        bound = {"band": "high", "sequence_mask": "high", "sequence_truncate": "cap"}.get(name, "")
        yield Row(f"correction.{bound or 'high'}", "vllm_importance_sampling_cap", cap if bound else None)
    yield Row("kl.coefficient", "beta", given.number("beta"), "beta=0.0")
    if steps == 1:
        change = "num_iterations=2 or more steps_per_generation, where off-policy steps are wanted"
        yield _anchor(change, one_step=True)
    else:
        yield _anchor("", one_step=False)


_LOW = "actor_rollout_ref.actor.clip_ratio_low"
_HIGH = "actor_rollout_ref.actor.clip_ratio_high"
_MODE = "actor_rollout_ref.actor.policy_loss.loss_mode"
_ESTIMATOR = "algorithm.adv_estimator"
_REFILLS = "algorithm.filter_groups.enable"
_STALE = "async_training.staleness_threshold"
_BYPASS = "algorithm.rollout_correction.bypass_mode"


def _verl(given: Reader) -> Iterator[Row]:
    """Yield the rows of verl. The cap of its CISPO is 1 + clip_ratio_high, with a floor of 1 - clip_ratio_low."""
    name = str(given[_MODE])
    low = given.number(_LOW)
    high = given.number(_HIGH)
    is_cispo = name == "cispo"
    loss = name if name in ("cispo", "gspo") else "dapo"
    yield Row("loss.name", _MODE, loss, f"{_MODE}=cispo {_HIGH}=4 {_LOW}=1")
    if is_cispo:
        yield Row("loss.cap", _HIGH, 1 + high, f"{_HIGH}=4: the cap is 1 + clip_ratio_high")
    else:
        yield Row("loss.clip_low", _LOW, low)
        yield Row("loss.clip_high", _HIGH, high)
    if is_cispo and low < 1:
        words = f"ratios below {1 - low:g} are raised to it; ScaleRL's CISPO has no floor"
        yield Row("loss.cap", words=words, change=f"{_LOW}=1", kind="floor")
    averages = {"token-mean": "token", "seq-mean-token-mean": "sample"}
    key = "actor_rollout_ref.actor.loss_agg_mode"
    yield Row("weights.name", key, averages.get(str(given[key]), "constant"))
    advantage = str(given[_ESTIMATOR])
    by_group = advantage == "grpo" and given.flag("algorithm.norm_adv_by_std_in_grpo")
    norm = "none"
    if advantage.startswith("reinforce_plus_plus"):
        norm = "batch"
    elif by_group:
        norm = "prompt"
    yield Row("advantage.baseline.name", _ESTIMATOR, "leave_one_out" if advantage == "rloo" else "mean")
    yield Row("advantage.normalisation.name", _ESTIMATOR, norm, f"{_ESTIMATOR}=reinforce_plus_plus_baseline")
    yield Row("model.fp32_head", value="none")
    yield Row("filter.zero_variance", _REFILLS, given.flag(_REFILLS), f"{_REFILLS}=True")
    key = "algorithm.filter_groups.max_num_gen_batches"
    most = 0
    if given.flag(_REFILLS):
        # 0 means no limit.
        most = int(given.number(key)) or 100
    yield Row("filter.refill", key, most)
    yield from _verl_correction(given)
    if name in ("clip_cov", "clip-cov"):
        of = "actor_rollout_ref.actor.policy_loss.clip_cov"
        yield Row("entropy.name", _MODE, "clip_cov")
        bounds = {"fraction": f"{of}_ratio", "low": f"{of}_lb", "high": f"{of}_ub"}
        yield from (Row(f"entropy.{ours}", theirs, given.number(theirs)) for ours, theirs in bounds.items())
    elif bonus := given.number("actor_rollout_ref.actor.entropy_coeff"):
        yield Row("entropy.name", value="bonus", change="actor_rollout_ref.actor.entropy_coeff=0")
        yield Row("entropy.coefficient", "actor_rollout_ref.actor.entropy_coeff", bonus)
    batch = given.number("data.train_batch_size", 1)
    key = "actor_rollout_ref.actor.ppo_mini_batch_size"
    steps = max(round(batch / (given.number(key, 1) or 1) * given.number("actor_rollout_ref.actor.ppo_epochs", 1)), 1)
    stale = given[_STALE]
    yield Row("pipeline.push_every", key, steps if stale is None else None)
    change = f"the fully asynchronous trainer: {_STALE}, async_training.partial_rollout"
    yield Row("pipeline.drain", value=stale is None, change=change)
    if stale is not None:
        words = f"staleness_threshold = {stale} limits the share of stale samples, not how old one may be"
        yield Row("pipeline.max_lag", words=words, kind="lag")
    if not given.flag(_BYPASS):
        yield _anchor(f"{_BYPASS}=True", one_step=stale is None and steps == 1)
    key = "actor_rollout_ref.actor.kl_loss_coef"
    coefficient = 0.0
    if given.flag("actor_rollout_ref.actor.use_kl_loss"):
        coefficient = given.number(key)
    yield Row("kl.coefficient", key, coefficient, "actor_rollout_ref.actor.use_kl_loss=False")


def _verl_correction(given: Reader) -> Iterator[Row]:
    """Yield verl's correction: weights by sequence, or rejection; weights by token correspond to our losses."""
    weights = str(given["algorithm.rollout_correction.rollout_is"])
    rejects = str(given["algorithm.rollout_correction.rollout_rs"])
    change = "algorithm.rollout_correction.rollout_is=token algorithm.rollout_correction.rollout_rs=null"
    if rejects not in ("None", "none"):
        key = "algorithm.rollout_correction.rollout_rs_threshold"
        lower = f"{key}_lower"
        # One number, or the ends of a band: "0.5_2.0".
        low, is_band, high = str(given[key] or 2.0).rpartition("_")
        name = "band" if rejects.startswith("token") else "sequence_mask"
        yield Row("correction.name", "algorithm.rollout_correction.rollout_rs", name, change)
        if is_band:
            yield Row("correction.low", key, float(low))
        else:
            yield Row("correction.low", lower, given.number(lower))
        yield Row("correction.high", key, float(high))
    elif weights == "sequence":
        key = "algorithm.rollout_correction.rollout_is_threshold"
        yield Row("correction.name", "algorithm.rollout_correction.rollout_is", "sequence_truncate", change)
        yield Row("correction.cap", key, given.number(key))


_MOST = "orchestrator.max_off_policy_steps"
_INFLIGHT = "orchestrator.max_inflight_rollouts"


_MASK_LOW = "trainer.loss.token_mask_low"
_MASK_HIGH = "trainer.loss.token_mask_high"


def _prime_rl(given: Reader) -> Iterator[Row]:
    """Yield prime-rl's rows. Its ratio uses the generator's log-probs; groups that become too old are discarded."""
    keys = list(given.settings)

    def fp32_head(side: str) -> bool:
        named = (key for key in keys if key.startswith(side) and "head" in key and re.search("fp32|float32", key))
        return any(map(given.flag, named))

    change = 'trainer.loss.type = "custom" with a CISPO of your own'  # none of its losses is one of ours
    yield Row("loss.name", value=given["trainer.loss.type"], change=change)
    yield Row("weights.name", value="token")
    if given[_MASK_HIGH] is not None:
        yield Row("correction.name", value="band")
        yield Row("correction.low", _MASK_LOW, given.number(_MASK_LOW))
        yield Row("correction.high", _MASK_HIGH, given.number(_MASK_HIGH))
    yield Row("advantage.normalisation.name", value="none")
    change = "an FP32 head in both [trainer.model] and [inference.model]"
    head = _head(fp32_head("trainer"), fp32_head("inference"))
    yield Row("model.fp32_head", "trainer.model.fp32_lm_head", head, change)
    filtered = [key for key in keys if "zero_advantage" in f"{key} {given.settings[key]}"]
    filtered += [key for key in keys if key.endswith("online_difficulty_filtering") and given.flag(key)]
    easy = [key for key in keys if "easy" in key]
    given.read.update(filtered, easy)
    change = 'a filter of type "zero_advantage" in [orchestrator]'
    yield Row("filter.zero_variance", value=bool(filtered), change=change)
    curriculum = "no_positive_resampling" if easy else "uniform"
    yield Row("curriculum.name", value=curriculum, change="orchestrator.buffer.easy_threshold = 0.9")
    words = "groups that would become too old are thrown away, long answers most often; ScaleRL paces generation "
    yield Row("pipeline", words=f"{words}instead", kind="discards")
    most = given.number(_MOST)
    batch = given.number("orchestrator.batch_size", 1) or 1.0
    yield Row("pipeline.max_lag", _MOST, int(most), f"{_MOST} = 8")
    ahead = given.number(_INFLIGHT) or batch * (given.number("orchestrator.oversampling_factor", 1) or 1)
    deepest = ahead / batch + given.number("max_async_level")
    if deepest < most:
        words = f"rollouts in flight are {ahead / batch:.2g} batches: at an even pace no group gets older than about "
        words += f"{deepest:.2g} steps, so that a bound of {most:g} rarely acts; with "
        words += f"{batch * (most + 1):g} rollouts in flight it can"
        yield Row("pipeline.max_lag", words=words, change=_INFLIGHT, kind="lag_cannot_bind")
    yield Row("kl.coefficient", "trainer.loss.kl_tau", given.number("trainer.loss.kl_tau"), "trainer.loss.kl_tau = 0")


class Framework(NamedTuple):
    rows: Callable[[Reader], Iterator[Row]]
    known_by: str
    """Keys, or tables, that only this framework has."""
    defaults: str
    renamed: Mapping[str, str]
    """Settings that only have another name here."""


FRAMEWORKS: dict[str, Framework] = {
    "trl": Framework(
        _trl,
        "loss_type num_generations scale_rewards epsilon_high max_completion_length num_iterations",
        """
        loss_type = "dapo"
        epsilon = 0.2
        scale_rewards = "group"
        cast_lm_head_to_fp32 = false
        use_vllm = false
        num_iterations = 1
        mask_truncated_completions = false
        max_completion_length = 256
        beta = 0.0
        num_generations = 8
        temperature = 1.0
        learning_rate = 1e-06
        importance_sampling_level = "token"
        gradient_accumulation_steps = 1
        vllm_importance_sampling_correction = true
        vllm_importance_sampling_mode = "sequence_mask"
        vllm_importance_sampling_cap = 3.0
        """,
        {
            "max_completion_length": "length.max_length",
            "num_generations": "pipeline.completions_per_group",
            "temperature": "rollout.temperature",
            "learning_rate": "optimizer.lr",
        },
    ),
    "verl": Framework(
        _verl,
        "actor_rollout_ref algorithm.adv_estimator data.train_batch_size async_training",
        """
        data = {train_batch_size = 1024, max_response_length = 512}
        [algorithm]
        adv_estimator = "gae"
        norm_adv_by_std_in_grpo = true
        filter_groups.enable = false
        rollout_correction = {bypass_mode = false, rollout_is_threshold = 2.0}
        [actor_rollout_ref]
        rollout = {n = 1, temperature = 1.0}
        [actor_rollout_ref.actor]
        policy_loss = {loss_mode = "vanilla", clip_cov_ratio = 0.0002, clip_cov_lb = 1.0, clip_cov_ub = 5.0}
        loss_agg_mode = "token-mean"
        clip_ratio_low = 0.2
        clip_ratio_high = 0.2
        ppo_mini_batch_size = 256
        ppo_epochs = 1
        use_kl_loss = false
        kl_loss_coef = 0.001
        optim.lr = 1e-06
        """,
        {
            "data.max_response_length": "length.max_length",
            "actor_rollout_ref.rollout.n": "pipeline.completions_per_group",
            "actor_rollout_ref.rollout.temperature": "rollout.temperature",
            "actor_rollout_ref.actor.optim.lr": "optimizer.lr",
        },
    ),
    "prime-rl": Framework(
        _prime_rl,
        "orchestrator trainer.loss inference.model trainer.model",
        """
        max_async_level = 1
        trainer.loss = {type = "default", kl_tau = 0.001}
        trainer.optim.lr = 1e-06
        [orchestrator]
        max_off_policy_steps = 8
        group_size = 8
        batch_size = 128
        oversampling_factor = 1.0
        sampling.temperature = 1.0
        """,
        {
            "orchestrator.group_size": "pipeline.completions_per_group",
            "orchestrator.rollouts_per_example": "pipeline.completions_per_group",
            "orchestrator.sampling.temperature": "rollout.temperature",
            "trainer.optim.lr": "optimizer.lr",
        },
    ),
}


def check_recipe(path: Path, framework: str | None = None) -> Checked:
    """Return how a configuration translates to our recipe, and where it differs from ScaleRL."""
    settings = read_settings(path)
    name = framework or _recognised(settings, path)
    chosen = FRAMEWORKS[name]
    given = Reader(settings, chosen.defaults)
    # First, components that none of these frameworks has by default.
    rows = [Row("curriculum.name", value="uniform"), Row("length.name", value="none"), *chosen.rows(given)]
    rows += [Row(ours, theirs, given[theirs]) for theirs, ours in chosen.renamed.items()]
    translations = (
        Translation(
            theirs=row.theirs,
            value=given[row.theirs],
            is_default=settings.get(row.theirs) is None,
            ours=row.ours,
            our_value=row.value,
        )
        for row in rows
        if row.theirs and row.value is not None
    )
    return Checked(
        framework=name,
        translations=tuple(translations),
        differences=tuple(_differences(rows)),
        not_read=tuple(key for key in settings if key not in given.read),
    )


def _differences(rows: Sequence[Row]) -> Iterator[Difference]:
    """Yield the settings that differ from ScaleRL, in the order of its components, and then the notes."""
    scalerl = settings_of(load_recipe("scalerl"))
    has = {row.ours: row for row in rows if not row.kind}
    for key, does in SCALERL.items():
        row = has.get(key)
        if row is not None and row.value is not None and row.value != scalerl[key].value:
            statement = f"{key} is {json.dumps(row.value)}; ScaleRL {does}{row.words}"
            yield Difference(kind=key, ours=key, statement=statement, change=row.change)
    for row in rows:
        if row.kind:
            yield Difference(kind=row.kind, ours=row.ours, statement=row.words, change=row.change)


def _recognised(settings: Tree, path: Path) -> str:
    counts = {name: _num_known(framework, settings) for name, framework in FRAMEWORKS.items()}
    best = max(counts, key=lambda name: counts[name])
    if not counts[best]:
        raise UsageError(
            f"{path} has no setting that identifies verl, TRL or prime-rl: name the framework with --framework"
        )
    return best


def _num_known(framework: Framework, settings: Tree) -> int:
    """Return how many settings only this framework has."""
    tables = framework.known_by.split()
    return sum(any(is_at(key, table) for table in tables) for key in settings)


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
