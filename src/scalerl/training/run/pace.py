"""Estimate how long the steps of a recipe take on GPUs of a size: for hours and costs before a run.

    sampling    a decode step reads the weights, the head in FP32 and the caches in use; the slots are refilled
    learning    6 FLOPs per parameter and token (4 with adapters, 2 more with recomputation); every pass goes through
                weights and gradients
    update      weights, gradients and moments pass through the memory, or over the bus to the host
    evaluation  sampled like training, between steps

Rates are those of the usual GPU of that size, times what was reached in measurements (docs/results/speed.md). How long
answers get is unknown before a run: they are taken to have LENGTH of the limit on average. Estimates were 0.75 to
1.35 of the time of a step where both exist; they are no promise.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from scalerl.recipe.recipe import Recipe
from scalerl.training.run.memory import Gpus, ModelSizes, host_bytes, num_generators, num_gpus, number_bytes

LENGTH = 0.6
"""Mean length of an answer as a share of the longest allowed, as on GSM8K with up to 384 tokens; .54 with up to 768."""
VARIED = 0.65
"""Share of the groups whose answers differ in reward, as in runs on GSM8K and MATH: a filter drops the others."""
REACHED_FLOPS = 0.45
"""Share of the rates below that the learner reaches."""
REACHED_BANDWIDTH = 0.6
"""Share of the rates below that the sampler reaches."""
OVERHEAD_S = 0.001
"""Seconds of a decode step on top of reading: launches and sampling."""
FILLED = {"training": 0.9, "evaluation": 0.6}
"""Share of the slots in use: an evaluation ends with few answers."""
BUS = 2e10
"""Bytes per second to the host."""
START_S = 60.0


class Rates(NamedTuple):
    """The rates of a kind of GPU."""

    name: str
    memory: float
    """Bytes."""
    flops: float
    """Per second, for dense products in bf16."""
    bandwidth: float
    """Bytes per second."""


KINDS = (
    Rates("RTX 4090", 24e9, 1.65e14, 1.0e12),
    Rates("L40S", 48e9, 3.6e14, 0.86e12),
    Rates("H100", 80e9, 9.9e14, 3.35e12),
    Rates("H200", 141e9, 9.9e14, 4.8e12),
    Rates("B200", 180e9, 2.25e15, 8.0e12),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The time of a run, estimated."""

    rates: Rates
    num_gpus: int
    step_s: float
    evaluation_s: float
    """Seconds of evaluations, per step."""
    steps: float | None
    """Steps of the whole budget; None if it is not known from it."""

    @property
    def hours(self) -> float | None:
        """Hours of the whole budget."""
        if self.steps is None:
            return None
        return (START_S + self.steps * (self.step_s + self.evaluation_s)) / 3600


def rates_of(bytes_each: float) -> Rates:
    """Return the rates of the kind of GPU with about this much memory."""
    return min(KINDS, key=lambda kind: abs(math.log(kind.memory / bytes_each)))


class StepTime(NamedTuple):
    """Estimates for a recipe whose settings are all decided; `slots` are those of each generator."""

    recipe: Recipe
    sizes: ModelSizes
    rates: Rates
    slots: int

    @property
    def prompt(self) -> float:
        """Mean number of tokens of a prompt."""
        return self.recipe.rollout.max_prompt_tokens / 2

    @property
    def length(self) -> float:
        """Mean number of tokens of an answer."""
        return LENGTH * (self.recipe.longest - self.recipe.rollout.max_prompt_tokens)

    @property
    def weights(self) -> int:
        """Weights that a token is multiplied with."""
        return self.sizes.shape.body_params + self.sizes.shape.head_params

    @property
    def flops(self) -> float:
        return REACHED_FLOPS * self.rates.flops

    @property
    def bandwidth(self) -> float:
        return REACHED_BANDWIDTH * self.rates.bandwidth

    def decode_s(self) -> float:
        """Return the seconds of a decode step: it reads the weights, the head in FP32 and half of the full caches."""
        shape = self.sizes.shape
        each = number_bytes(self.recipe)
        cached = self.slots * (self.prompt + self.length / 2) * self.sizes.cache_per_token
        reads = (shape.params + cached) * each + 4 * shape.head_params
        # Weights in 4 bits are decoded in every pass.
        decoding = 2.0 if self.recipe.model.lora.bits == 4 else 1.0
        return OVERHEAD_S + decoding * reads / self.bandwidth

    def sampling_s(self, answers: float, kind: Literal["training", "evaluation"]) -> float:
        """Return the seconds of sampling this many answers on all generators."""
        prompts = answers / self.recipe.pipeline.completions_per_group
        prefill_s = 2 * self.weights * prompts * self.prompt / self.flops
        num_steps = answers * self.length / (FILLED[kind] * self.slots)
        return (num_steps * self.decode_s() + prefill_s) / max(num_generators(self.recipe), 1)

    def learner_s(self) -> float:
        """Return the seconds in which the learner computes a step."""
        recipe = self.recipe
        learner = self.recipe.learner
        products = (4 if recipe.model.lora.rank else 6) + (2 if learner.gradient_checkpointing is True else 0)
        num_answers = recipe.pipeline.batch
        num_prompts = recipe.pipeline.groups_per_batch if learner.share_prompts else num_answers
        tokens = num_prompts * self.prompt + num_answers * self.length
        if recipe.filter.zero_variance:
            tokens *= VARIED
        trained = self.sizes.trained(recipe)
        # A pass reads every weight two or three times and adds to gradients in FP32.
        num_passes = math.ceil(tokens / max(learner.micro_batch_tokens, recipe.rollout.context))
        touched = num_passes * (products / 2 * number_bytes(recipe) * self.weights + 10 * trained)
        # Weights, gradients and moments are read; weights and moments are written. Rounding to 8 bits repeats that.
        updated = (24 + (40 if recipe.optimizer.bits == 8 else 0)) * trained
        moved_s = (touched + updated) / self.bandwidth + host_bytes(recipe, self.sizes) / BUS
        return (products * self.weights * tokens / self.flops + moved_s) / learner.ranks

    def step_s(self) -> float:
        """Return the seconds of a step."""
        sampled_s = self.sampling_s(self.recipe.pipeline.batch, "training")
        # Engines with their own devices sample while the learner trains.
        if num_generators(self.recipe):
            return max(sampled_s, self.learner_s())
        return sampled_s + self.learner_s()


def pace_of(recipe: Recipe, sizes: ModelSizes, gpus: Gpus, slots: int) -> Pace:
    """Estimate the time of a recipe whose settings are all decided; `slots` are those of each generator."""
    time = StepTime(recipe, sizes, rates_of(gpus.bytes_each), slots)
    step_s = time.step_s()
    evaluation = recipe.evaluation
    answers = sum(evaluation.num_answers(name) / evaluation.every_of(name) for name in recipe.eval_sets)
    held = num_gpus(recipe.learner, recipe.rollout)
    return Pace(
        rates=time.rates,
        num_gpus=held,
        step_s=step_s,
        evaluation_s=time.sampling_s(answers, "evaluation"),
        steps=_steps(recipe, step_s, held),
    )


def _steps(recipe: Recipe, step_s: float, num_gpus: int) -> float | None:
    """Return the steps of the budget, by the first limit that is reached."""
    limits = []
    if recipe.budget.steps is not None:
        limits.append(float(recipe.budget.steps))
    if recipe.budget.gpu_hours is not None:
        limits.append(3600 * recipe.budget.gpu_hours / num_gpus / step_s)
    return min(limits, default=None)


def size_words(num: float) -> str:
    """Return a number of parameters as people write it: 1.54B, 135M, 855k."""
    for unit, factor in (("B", 1e9), ("M", 1e6)):
        # Two digits after the point of a billion, and no 1000M.
        if num >= 0.9995 * factor or (unit == "M" and num >= 1e5):
            return f"{num / factor:.3g}{unit}"
    return f"{num / 1e3:.3g}k"
