"""Predict how fast a recipe runs on a number of GPUs, for every split of them, from a table of rates. No torch.

A table has the measured or assumed rates of one generator and of one GPU of the learner (`Rates`):

    slots = 192                            # completions that a generator samples at a time
    decode_s = [[1, 0.008], [192, 0.020]]  # [completions sampled at once, seconds per token of all]; linear in between
    train_tokens_per_s = 3000              # completion tokens that one GPU of the learner trains on per second
    length_mean = 4500                     # mean tokens of a completion

Per step, with C completions of mean length L:

    sample   C / generators x L x decode_s(active) / active + pauses to read prompts and observations, and to copy
             weights
    train    train_fixed_s + C x L / rate; the loop waits push_s for a push
    PipelineRL-k         the slower of the two, because they overlap
    PPO-off-policy-k     their sum, and once per round the wait for the longest completion; the same on one GPU

The lag rule allows (k + 1) C untrained completions. One batch of them is being trained; each other group ends with its
longest completion, so `active` is at most k C / (longest of a group / mean). A conversation that waits for its
environment takes no slot; at most twice as many conversations are open as there are slots.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Annotated

import numpy as np
from pydantic import Field, ValidationError

from scalerl.errors import UsageError
from scalerl.recipe.load import read_table
from scalerl.recipe.messages import described
from scalerl.recipe.parts import Count, NotNegative, PipelineSettings, Positive, Settings, Share
from scalerl.recipe.recipe import Recipe, mode_name
from scalerl.runfolder import store
from scalerl.training.loop.slots import expected_lag

_FEWEST_STEPS = 8
_NORMAL = NormalDist()

Pair = Annotated[tuple[float, float], Field(strict=False)]


class Rates(Settings):
    """The rates of one generator and of one GPU of the learner, and the lengths of completions."""

    description: str = ""
    """Where the numbers come from."""
    slots: Count
    """Completions that a generator samples at a time."""
    decode_s: Annotated[tuple[Pair, ...], Field(strict=False, min_length=1)]
    """Pairs of (active completions, seconds for one token of each); linear in between, constant outside."""
    chunk: Count = 1
    """Tokens that a generator samples before it checks which completions have ended."""
    prompt_s: NotNegative = 0.0
    """Seconds for which a generator pauses to read the prompt of a group."""
    turns: float = Field(default=1.0, ge=1)
    """Turns per conversation. Lengths count only the tokens that the model writes."""
    turn_s: NotNegative = 0.0
    """Seconds for which a generator pauses before a further turn, to read the observation and what its cache lost."""
    tool_s: NotNegative = 0.0
    """Seconds that an environment takes per turn."""
    gpus_per_generator: Count = 1
    """GPUs that one generator holds."""
    train_tokens_per_s: Positive
    """Completion tokens that one GPU of the learner trains on per second, including the time for prompts."""
    train_fixed_s: NotNegative = 0.0
    """Seconds per step that do not depend on its tokens: the optimiser, preparing a batch."""
    learner_efficiency: Share = 1.0
    """Share of the rate per GPU that remains after each doubling of the learner's GPUs."""
    push_s: NotNegative = 0.0
    """Seconds for which the loop waits for a push of weights."""
    copy_s: NotNegative = 0.0
    """Seconds for which a generator pauses to copy new weights."""
    length_mean: Positive
    """Mean tokens per completion."""
    length_spread: NotNegative = 0.6
    """Standard deviation of the logarithm of lengths; 0 if all are equal."""
    length_max: Count | None = None
    """Length at which completions are cut; by default the recipe's context."""

    def length(self, longest: int) -> float:
        """Return the mean of log-normal lengths that are cut at `longest`."""
        if not self.length_spread:
            return min(self.length_mean, longest)
        place = math.log(longest / self.length_mean) / self.length_spread + self.length_spread / 2
        kept = _NORMAL.cdf(place - self.length_spread)
        return self.length_mean * kept + longest * (1 - _NORMAL.cdf(place))

    def longest_of(self, num: int, longest: int) -> float:
        """Return the length of the longest of `num` completions, cut at `longest`."""
        place = _NORMAL.inv_cdf(1 - 0.5 / num)
        return min(self.length_mean * math.exp(self.length_spread * place - self.length_spread**2 / 2), longest)

    def decode_token_s(self, num_active: float) -> float:
        numbers, seconds = zip(*sorted(self.decode_s), strict=True)
        return float(np.interp(num_active, numbers, seconds))

    def train_s(self, tokens: float, gpus: int) -> float:
        """Return the seconds of a step on this many completion tokens."""
        rate = self.train_tokens_per_s * gpus * self.learner_efficiency ** math.log2(gpus)
        return self.train_fixed_s + tokens / rate


def read_rates(path: Path) -> Rates:
    """Read rates from a TOML table or a run folder; raise UsageError if that fails."""
    if path.is_dir():
        return _rates_of_run(path)
    tree = read_table(f"--rates {path}", path, UsageError)
    try:
        return Rates.model_validate(tree)
    except ValidationError as error:
        _, statement, suggestion = described(error.errors()[0], tree, Rates)
        raise UsageError(f"--rates {path}: {statement}{suggestion}") from None


def _rates_of_run(folder: Path) -> Rates:
    """Return the rates of a run, without its first quarter of steps, in which it compiles and fills its slots."""
    rows, recipe = sorted(store.read_metrics(folder), key=lambda row: row["step"]), store.read_recipe(folder)
    if len(rows) < _FEWEST_STEPS or recipe is None:
        raise UsageError(f"--rates {folder} is not a run folder with at least {_FEWEST_STEPS} steps")
    rows = rows[len(rows) // 4 :]

    def mean(name: str) -> float:
        return fmean(row.get(name) or 0.0 for row in rows)

    rollout, length = recipe["rollout"], mean("rollout/length_mean")
    tokens = length * recipe["pipeline"]["groups_per_batch"] * recipe["pipeline"]["completions_per_group"]
    num = max(rollout.get("generators") or 0, 1)
    turns = max(mean("rollout/turns_mean"), 1.0)
    # In one process, the loop waits while the engine samples in all its slots, or while it waits for environments.
    idle_s = (rows[-1].get("time/tools_s", 0.0) - rows[0].get("time/tools_s", 0.0)) / (len(rows) - 1)
    slots = int(mean("generators/slots") or (store.read_env(folder) or {}).get("slots") or rollout["slots"])
    active = mean("generators/active_mean") or slots
    busy_s = mean("generators/busy_s") or mean("time/wait_s") - idle_s
    parallel = rollout.get("vllm", {}).get("tensor_parallel", 1) if rollout.get("engine") == "vllm" else 1
    own_gpus = rollout.get("gpus_per_generator")
    return Rates(
        description=f"measured in {folder}",
        slots=slots,
        # This includes the time to read observations between turns.
        decode_s=((active, busy_s * active * num / tokens),),
        turns=turns,
        tool_s=mean("rollout/tool_s") / (tokens / length * turns),
        gpus_per_generator=max(parallel if own_gpus is None else own_gpus, 1),
        # The time is that of all ranks together.
        train_tokens_per_s=tokens / mean("time/step_s") / recipe.get("learner", {}).get("ranks", 1),
        push_s=mean("time/push_s") * recipe["pipeline"]["push_every"],
        copy_s=mean("generators/copy_s"),
        length_mean=length,
        length_spread=_spread(mean("rollout/length_max") / length, round(tokens / length)),
        length_max=max(int(max(row.get("rollout/length_max") or 0 for row in rows)), math.ceil(length)),
    )


def _spread(ratio: float, num: int) -> float:
    """Return the spread with which the longest of `num` completions is `ratio` times the mean; 0 if unknown."""
    place = _NORMAL.inv_cdf(1 - 0.5 / num)
    return place - math.sqrt(max(place**2 - 2 * math.log(ratio), 0.0)) if ratio > 1 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The speed of one scheme with one split of the GPUs."""

    scheme: str
    generators: int
    """0 if one GPU samples and trains in turns."""
    generator_gpus: int
    learner_gpus: int
    steps_per_hour: float
    gpu_hours_per_step: float
    generator_idle: float
    learner_idle: float
    slots_used: float
    lag_mean: float


def splits(recipe: Recipe, rates: Rates, gpus: int, generators: int | None = None) -> dict[str, list[Split]]:
    """Return the speed of every split of the GPUs, or of the one with `generators`, by scheme."""
    each = rates.gpus_per_generator
    nums = range(1, (gpus - 1) // each + 1) if generators is None and gpus > 1 else [generators or 0]
    if not nums or (nums[0] == 0 and gpus != 1) or (nums[0] and gpus - nums[-1] * each < 1):
        raise UsageError(
            f"--gpus {gpus} cannot be split into {generators or 'some'} generators of {each} and at least one GPU for "
            f"the learner; sampling and training take turns only on one GPU (--generators 0)"
        )
    longest = rates.length_max or recipe.rollout.context - recipe.rollout.max_prompt_tokens
    return {
        mode_name(pipeline): [_split(pipeline, rates, gpus, num, longest) for num in nums]
        for pipeline in _schemes(recipe.pipeline)
    }


def best(of_scheme: Sequence[Split]) -> Split:
    """Return the fastest split; if several are within a thousandth, the one with the fewest generators."""
    fastest = max(split.steps_per_hour for split in of_scheme)
    return next(split for split in of_scheme if split.steps_per_hour >= 0.999 * fastest)


def _schemes(pipeline: PipelineSettings) -> list[PipelineSettings]:
    lag = max(pipeline.push_every if pipeline.drain else pipeline.max_lag, 1)
    pipelined = pipeline.model_copy(update={"max_lag": lag, "push_every": 1, "drain": False})
    drained = pipeline.model_copy(update={"max_lag": lag - 1, "push_every": lag, "drain": True})
    # The recipe's own scheme may be a third one: synchronous.
    return list({mode_name(each): each for each in (pipelined, drained, pipeline)}.values())


def _split(pipeline: PipelineSettings, rates: Rates, gpus: int, generators: int, longest: int) -> Split:
    num, learner_gpus = max(generators, 1), gpus - generators * rates.gpus_per_generator
    size, mean = pipeline.completions_per_group, rates.length(longest)
    batch, pushes = pipeline.batch, pipeline.push_every
    untrained = pushes * batch if pipeline.drain else max(pipeline.max_lag, 1) * batch
    spread = rates.longest_of(size, longest) / mean
    sampled_s = mean * rates.decode_token_s(rates.slots)
    num_open = min(untrained / (1.0 if pipeline.drain else spread) / num, 2 * rates.slots)
    active = min(rates.slots, num_open * sampled_s / (sampled_s + rates.turns * rates.tool_s))
    train_s, push_s = rates.train_s(batch * mean, learner_gpus), rates.push_s / pushes
    sample_s = batch / num * (mean + (rates.chunk - 1) / 2) * rates.decode_token_s(active) / active
    read_s = rates.prompt_s * pipeline.groups_per_batch + rates.turn_s * (rates.turns - 1) * batch
    sample_s += read_s / num + (rates.copy_s / pushes if generators else 0.0)
    if pipeline.drain:
        tail = rates.longest_of(pushes * batch, longest) - mean
        sample_s += max(tail * rates.decode_token_s(1) / pushes, 0.0)
    in_turns = pipeline.drain or not generators
    step_s = sample_s + train_s + push_s if in_turns else max(sample_s, train_s + push_s)
    slots = min(round(rates.slots * num), untrained)
    lag = expected_lag(slots, pipeline, spread=spread, learner=0.0 if in_turns else train_s / step_s).mean
    return Split(
        scheme=mode_name(pipeline),
        generators=generators,
        generator_gpus=gpus - learner_gpus,
        learner_gpus=learner_gpus,
        steps_per_hour=3600 / step_s,
        gpu_hours_per_step=gpus * step_s / 3600,
        generator_idle=1 - sample_s / step_s,
        learner_idle=1 - train_s / step_s,
        slots_used=active / rates.slots * sample_s / step_s,
        # A generator that waits for the learner samples as far ahead as the lag rule allows.
        lag_mean=float(pipeline.max_lag) if not in_turns and sample_s < step_s else lag,
    )
