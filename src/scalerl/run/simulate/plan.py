"""Find the fastest split of GPUs between generators and learner by simulation; forecast reward against GPU-hours."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from scalerl.config import Recipe, mode_name
from scalerl.config.parts import InterruptionSettings, PenaltySettings, PipelineSettings, UnlimitedSettings
from scalerl.curves import At, Fit, reward_at
from scalerl.errors import UsageError
from scalerl.run.simulate.rates import RatesSettings
from scalerl.run.simulate.schedule import Regime, Simulated, simulate

STEPS = 48
"""Steps that are simulated by default."""
_COARSE = 8
"""Splits that are tried first, spread evenly; then the neighbours of the best."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """One division of the GPUs, simulated."""

    generators: int
    """0: one GPU samples and trains in turns."""
    generator_gpus: int
    learner_gpus: int
    simulated: Simulated

    @property
    def gpus(self) -> int:
        return self.generator_gpus + self.learner_gpus

    @property
    def steps_per_hour(self) -> float:
        return 3600 / self.simulated.step_s

    @property
    def gpu_hours_per_step(self) -> float:
        return self.gpus / self.steps_per_hour

    @property
    def tokens_per_s(self) -> float:
        """Completion tokens trained per second."""
        return self.simulated.num_tokens / self.simulated.ends_s[-1]

    @cached_property
    def lag_mean(self) -> float:
        """Mean lag of a trained group."""
        lags = self.simulated.lags
        return sum(lag * num for lag, num in lags.items()) / max(sum(lags.values()), 1)

    def lag_quantile(self, share: float) -> int:
        """Return the lag that this share of the trained groups does not exceed."""
        total, seen = sum(self.simulated.lags.values()), 0
        for lag, num in self.simulated.lags.items():
            seen += num
            if seen >= share * total:
                return lag
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RegimePlan:
    """All splits that were tried for one regime."""

    name: str
    pipeline: PipelineSettings
    splits: tuple[Split, ...]
    """By the number of generators."""

    @property
    def best(self) -> Split:
        """The fastest split; of several within a thousandth, the one with the fewest generators."""
        fastest = max(split.steps_per_hour for split in self.splits)
        return next(split for split in self.splits if split.steps_per_hour >= 0.999 * fastest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The simulated splits of a recipe on a given number of GPUs, by regime."""

    gpus: int
    rates: RatesSettings
    regimes: tuple[RegimePlan, ...]


def make_plan(
    recipe: Recipe,
    rates: RatesSettings,
    gpus: int,
    *,
    generators: int | None = None,
    steps: int = STEPS,
    on_split: Callable[[str, Split], None] = lambda name, split: None,
) -> Plan:
    """Simulate PipelineRL-k and PPO-off-policy-k, and the recipe's own regime if it is another.

    With `generators` only that split is simulated, otherwise the fastest is looked for. On one GPU, sampling and
    training take turns.
    """
    choices = _learner_gpus(rates, gpus, generators)
    longest = _longest(recipe, rates)

    def split_of(pipeline: PipelineSettings, learner_gpus: int) -> Split:
        num = (gpus - learner_gpus) // rates.gpus_per_generator
        split = Split(
            generators=num,
            generator_gpus=num * rates.gpus_per_generator,
            learner_gpus=learner_gpus,
            simulated=_simulate(pipeline, rates, num, learner_gpus, steps, longest),
        )
        on_split(mode_name(pipeline), split)
        return split

    regimes = []
    for pipeline in _regimes(recipe.pipeline):
        splits = _search(choices, lambda learner_gpus, pipeline=pipeline: split_of(pipeline, learner_gpus))
        ordered = tuple(sorted(splits, key=lambda split: split.generators))
        regimes.append(RegimePlan(name=mode_name(pipeline), pipeline=pipeline, splits=ordered))
    return Plan(gpus=gpus, rates=rates, regimes=tuple(regimes))


def rewards(regime: RegimePlan, curve: Fit, gpu_hours: Sequence[float]) -> list[At]:
    """Return the reward at each number of GPU-hours, by a curve fitted over steps.

    The curve's reward per step is taken as it is: it was measured at one lag, and a simulation cannot know another.
    """
    return reward_at(curve, [hours / regime.best.gpu_hours_per_step for hours in gpu_hours])


def _learner_gpus(rates: RatesSettings, gpus: int, generators: int | None) -> list[int]:
    """Return the numbers of learner GPUs to choose from; what is left must make whole generators."""
    each = rates.gpus_per_generator
    if generators == 0 or (gpus == 1 and generators is None):
        if gpus != 1:
            raise UsageError(f"--generators 0 is for one GPU that samples and trains in turns; --gpus is {gpus}")
        if each != 1:
            raise UsageError(f"--gpus 1 is too few: a generator needs {each} GPUs (gpus_per_generator)")
        return [1]
    if gpus < each + 1:
        raise UsageError(
            f"--gpus {gpus} is too few: one GPU for the learner and {each} for a generator (gpus_per_generator) are "
            f"the least"
        )
    if generators is not None:
        left = gpus - generators * each
        if generators < 1 or left < 1:
            raise UsageError(
                f"--generators {generators} with {each} GPU{'s' * (each > 1)} each leaves {left} of --gpus {gpus} for "
                f"the learner, which needs at least 1"
            )
        return [left]
    return [gpus - num * each for num in range((gpus - 1) // each, 0, -1)]


def _search(choices: Sequence[int], split_of: Callable[[int], Split]) -> list[Split]:
    """Try some splits, then halve the distance around the best: throughput has one peak."""
    tried: dict[int, Split] = {}

    def try_at(place: int) -> float:
        place = min(max(place, 0), len(choices) - 1)
        if place not in tried:
            tried[place] = split_of(choices[place])
        return tried[place].steps_per_hour

    distance = max(len(choices) // _COARSE, 1)
    for place in range(0, len(choices), distance):
        try_at(place)
    while True:
        best = max(tried, key=lambda place: tried[place].steps_per_hour)
        around = (best - distance, best + distance)
        before = len(tried)
        for place in around:
            try_at(place)
        if distance == 1 and len(tried) == before:
            return list(tried.values())
        distance = max(distance // 2, 1)


def _regimes(own: PipelineSettings) -> list[PipelineSettings]:
    lag = max(own.push_every if own.drain else own.max_lag, 1)
    pipelined = own.model_copy(update={"max_lag": lag, "push_every": 1, "drain": False})
    drained = own.model_copy(update={"max_lag": lag - 1, "push_every": lag, "drain": True})
    by_name = {mode_name(pipeline): pipeline for pipeline in (pipelined, drained)}
    # The recipe's own may be a third: synchronous.
    return list(({mode_name(own): own} | by_name if mode_name(own) not in by_name else by_name).values())


def _longest(recipe: Recipe, rates: RatesSettings) -> int:
    match recipe.length:
        case InterruptionSettings() as length:
            return length.thinking_max + length.answer_budget
        case PenaltySettings() | UnlimitedSettings() as length:
            return length.max_length
        case _:
            return rates.lengths.longest or recipe.rollout.context


def _simulate(
    pipeline: PipelineSettings, rates: RatesSettings, generators: int, learner_gpus: int, steps: int, longest: int
) -> Simulated:
    regime = Regime(
        groups_per_batch=pipeline.groups_per_batch,
        completions_per_group=pipeline.completions_per_group,
        slots=rates.slots,
        max_lag=pipeline.max_lag,
        push_every=pipeline.push_every,
        drain=pipeline.drain,
    )
    # Whole rounds: generation of a round comes before its first step.
    rounds = -(-steps // pipeline.push_every)
    return simulate(
        regime,
        rates.durations(learner_gpus),
        lambda version, seed: rates.lengths.draw(seed, longest),
        steps=max(rounds, 4) * pipeline.push_every,
        num_generators=max(generators, 1),
        chunk=rates.chunk,
        apart=generators > 0,
    )


def as_json(plan: Plan, curve: Fit | None, gpu_hours: Sequence[float]) -> Mapping[str, object]:
    """Return a plan as JSON types."""
    return {
        "gpus": plan.gpus,
        "rates": plan.rates.model_dump(mode="json"),
        "regimes": [
            {
                "name": regime.name,
                "max_lag": regime.pipeline.max_lag,
                "push_every": regime.pipeline.push_every,
                "drain": regime.pipeline.drain,
                "best": _split_json(regime.best),
                "splits": [_split_json(split) for split in regime.splits],
                "reward": []
                if curve is None
                else [
                    {"gpu_hours": hours, "steps": at.compute, "reward": at.reward.value}
                    | {"low": at.reward.low, "high": at.reward.high}
                    for hours, at in zip(gpu_hours, rewards(regime, curve, gpu_hours), strict=True)
                ],
            }
            for regime in plan.regimes
        ],
    }


def _split_json(split: Split) -> dict[str, object]:
    return {
        "generators": split.generators,
        "generator_gpus": split.generator_gpus,
        "learner_gpus": split.learner_gpus,
        "steps_per_hour": split.steps_per_hour,
        "gpu_hours_per_step": split.gpu_hours_per_step,
        "tokens_per_s": split.tokens_per_s,
        "generator_idle": split.simulated.generator_idle,
        "learner_idle": split.simulated.learner_idle,
        "slots_used": split.simulated.slots_used,
        "lag_mean": split.lag_mean,
        "lags": {str(lag): num for lag, num in split.simulated.lags.items()},
    }
