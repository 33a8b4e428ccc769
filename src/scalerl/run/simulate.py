"""How fast a recipe would be on a number of GPUs, from a table of rates: steps per hour by split of the GPUs. No torch.

Per step, with C completions of L tokens in the mean:

    sample   C / generators x L x decode_s(active) / active + a pause for prompts and for the copy of new weights
    train    train_fixed_s + C x L / rate, and the loop waits push_s for a push
    PipelineRL-k         the slower of the two: they overlap
    PPO-off-policy-k     their sum, and once a round the longest completion is waited for; so it is on one GPU

The lag rule lets (k + 1) C completions be untrained. One batch of them is being trained, and of the others a group is
done with its longest completion, so that `active` is at most k C / (longest of a group / mean).

These formulas of means rank the splits. What the best one does is then replayed with drawn lengths (`run/replay.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scalerl.config import Recipe, mode_name
from scalerl.config.parts import PipelineSettings
from scalerl.curves import At, Fit, reward_at
from scalerl.errors import UsageError
from scalerl.loop.slots import expected_lag
from scalerl.run.rates import Rates
from scalerl.run.replay import replay


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The pace of one scheme with one division of the GPUs."""

    scheme: str
    generators: int
    """0: one GPU samples and trains in turns."""
    generator_gpus: int
    learner_gpus: int
    steps_per_hour: float
    gpu_hours_per_step: float
    generator_idle: float
    learner_idle: float
    slots_used: float
    lag_mean: float
    lag_max: int | None = None
    """The largest lag of a group, where the split was replayed."""


def splits(recipe: Recipe, rates: Rates, gpus: int, generators: int | None = None) -> dict[str, list[Split]]:
    """Return every split of the GPUs, or the one with so many generators, for every scheme."""
    each = rates.gpus_per_generator
    nums = range(1, (gpus - 1) // each + 1) if generators is None and gpus > 1 else [generators or 0]
    if not nums or (nums[0] == 0 and gpus != 1) or (nums[0] and gpus - nums[-1] * each < 1):
        raise UsageError(
            f"--gpus {gpus} cannot be split into {generators or 'some'} generators of {each} and at least one GPU for "
            f"the learner; only on one GPU sampling and training take turns (--generators 0)"
        )
    return {
        mode_name(pipeline): [_split(pipeline, rates, gpus, num, _longest(recipe, rates)) for num in nums]
        for pipeline in _schemes(recipe.pipeline)
    }


def best(of_scheme: Sequence[Split]) -> Split:
    """Return the fastest split; of several within a thousandth, the one with the fewest generators."""
    fastest = max(split.steps_per_hour for split in of_scheme)
    return next(split for split in of_scheme if split.steps_per_hour >= 0.999 * fastest)


def replayed(recipe: Recipe, rates: Rates, split: Split) -> Split:
    """Return the split with what a replay of the loop measures in place of what the formulas say."""
    pipeline = next(each for each in _schemes(recipe.pipeline) if mode_name(each) == split.scheme)
    longest = _longest(recipe, rates)
    seen = replay(pipeline, rates, generators=split.generators, learner_gpus=split.learner_gpus, longest=longest)
    return replace(
        split,
        steps_per_hour=3600 / seen.step_s,
        gpu_hours_per_step=(split.generator_gpus + split.learner_gpus) * seen.step_s / 3600,
        generator_idle=1 - seen.sample_s / seen.step_s,
        learner_idle=1 - seen.train_s / seen.step_s,
        slots_used=seen.active_mean / (rates.slots * max(split.generators, 1)),
        lag_mean=seen.lag_mean,
        lag_max=seen.lag_max,
    )


def _longest(recipe: Recipe, rates: Rates) -> int:
    return rates.length_max or recipe.rollout.context - recipe.rollout.max_prompt_tokens


def rewards(split: Split, curve: Fit, gpu_hours: Sequence[float]) -> list[At]:
    """Return the reward at each number of GPU-hours, by a curve fitted over steps at the lag it was measured with."""
    return reward_at(curve, [hours / split.gpu_hours_per_step for hours in gpu_hours])


def _schemes(own: PipelineSettings) -> list[PipelineSettings]:
    lag = max(own.push_every if own.drain else own.max_lag, 1)
    pipelined = own.model_copy(update={"max_lag": lag, "push_every": 1, "drain": False, "waits_for": "groups"})
    as_the_paper = pipelined.model_copy(update={"waits_for": "generators"})
    drained = pipelined.model_copy(update={"max_lag": lag - 1, "push_every": lag, "drain": True})
    # The recipe's own may be a fourth: synchronous.
    return list({mode_name(each): each for each in (pipelined, as_the_paper, drained, own)}.values())


def _split(pipeline: PipelineSettings, rates: Rates, gpus: int, generators: int, longest: int) -> Split:
    num, learner_gpus = max(generators, 1), gpus - generators * rates.gpus_per_generator
    size, mean = pipeline.completions_per_group, rates.length(longest)
    batch = pipeline.groups_per_batch * size
    untrained = pipeline.push_every * batch if pipeline.drain else max(pipeline.max_lag, 1) * batch
    spread = rates.longest_of(size, longest) / mean
    active = min(rates.slots, untrained / (1.0 if pipeline.drain else spread) / num)
    token_s = rates.decode_token_s(active)
    train_s = rates.train_s(batch * mean, learner_gpus)
    push_s, copy_s = rates.push_s / pipeline.push_every, rates.copy_s / pipeline.push_every
    sample_s = (
        batch / num * (mean + (rates.chunk - 1) / 2) * token_s / active
        + rates.prompt_s * pipeline.groups_per_batch / num
    )
    if generators:
        sample_s += copy_s
    if pipeline.drain:
        tail = (
            (rates.longest_of(pipeline.push_every * batch, longest) - mean)
            * rates.decode_token_s(1)
            / pipeline.push_every
        )
        sample_s += max(tail, 0.0)
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
        # A generator that waits for the learner samples as far ahead as it may.
        lag_mean=float(pipeline.max_lag) if not in_turns and sample_s < step_s else lag,
    )
