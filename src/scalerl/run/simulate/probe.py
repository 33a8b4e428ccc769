"""Measure the rates of this machine with the recipe's own model, engine, learner and problems: a batch or two of each.

Sampling and training are measured one after the other. On a machine where both share cores or memory, the rates of a
run in which all of them worked (--rates RUN) are closer.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing

import numpy as np
import torch

from scalerl.config import Recipe
from scalerl.loop.seams import Engine
from scalerl.run.parts import Inputs, build_engine, build_learner, load_inputs, num_slots, request_maker
from scalerl.run.prompts import training_prompts
from scalerl.run.simulate.rates import CHUNKS, LengthsSettings, RatesSettings, line_through
from scalerl.tasks.curriculum import Issued
from scalerl.types import Batch, Completion, Group, Request

_MOST_SLOTS = 512
"""Completions that are sampled at most: enough to see the rate, on any machine within minutes."""


def measure(recipe: Recipe) -> RatesSettings:
    """Return the rates of one generator and of a learner on one device of this machine."""
    inputs = load_inputs(recipe)
    with closing(inputs.graders):
        slots = min(num_slots(inputs.model, recipe), _MOST_SLOTS)
        with closing(build_engine(inputs.model, recipe, slots=slots)) as engine:
            requests = _requests(inputs, recipe, slots)
            chunk = CHUNKS["gpu" if inputs.device.type == "cuda" else "cpu"]
            _sample(engine, requests[: max(slots // 4, 1)])  # what is compiled and allocated once
            completions, start, slope = _sample(engine, requests)
            with ExitStack() as opened:
                learner = build_learner(inputs.model.model, recipe)
                opened.callback(getattr(learner, "close", lambda: None))
                fixed_s, token_s = _train(learner.step, completions, recipe)
                copy_s = _seconds(lambda: engine.push_weights(learner.weights(), 1))
        return RatesSettings(
            description=f"measured on this machine's {inputs.device.type}, {torch.get_num_threads()} threads",
            slots=slots,
            decode_s=((1.0, (start + slope) / chunk), (float(slots), (start + slope * slots) / chunk)),
            chunk=chunk,
            # All ranks together took this long.
            train_tokens_per_s=1 / max(token_s * recipe.learner.ranks, 1e-12),
            train_fixed_s=fixed_s,
            push_s=copy_s,
            copy_s=copy_s,
            lengths=LengthsSettings(values=tuple(sorted(float(len(each)) for each in completions))),
        )


def _requests(inputs: Inputs, recipe: Recipe, num: int) -> list[Request]:
    """Return requests for training problems, in whole groups, at least `num`."""
    max_tokens = recipe.rollout.max_prompt_tokens
    prompts = training_prompts(inputs.tasks, inputs.eval_sets, text=inputs.text, max_tokens=max_tokens)
    maker = request_maker(prompts, inputs.length, recipe)
    ids = [problem.id for of_task in prompts.values() for problem in of_task.tokens]
    num_groups = -(-num // recipe.pipeline.completions_per_group)
    issued = [Issued(problem_id=ids[place % len(ids)], epoch=place // len(ids)) for place in range(num_groups)]
    return [request for each in issued for request in maker.requests(each)]


def _sample(engine: Engine, requests: Sequence[Request]) -> tuple[list[Completion], float, float]:
    """Sample all requests; return them, and the line of seconds per chunk by active completions."""
    engine.submit(requests)
    completions: list[Completion] = []
    active, seconds = [], []
    while engine.num_pending:
        active.append(engine.num_pending)
        begun = time.perf_counter()
        completions += engine.poll()
        seconds.append(time.perf_counter() - begun)
    # The first call also reads the prompts.
    start, slope = line_through(np.array(active[1:] or active, float), np.array(seconds[1:] or seconds))
    return completions, start, slope


def _train(step: Callable[[Batch], object], completions: Sequence[Completion], recipe: Recipe) -> tuple[float, float]:
    """Return the fixed seconds of a step, and those of each completion token: from a whole and a half batch."""
    by_group: dict[str, list[Completion]] = {}
    for completion in completions:
        by_group.setdefault(completion.request.group, []).append(completion)
    # Every other completion is correct, so that no filter drops a group.
    groups = [
        Group(
            key=key,
            problem=members[0].request.problem,
            completions=tuple(members),
            correct=tuple(place % 2 == 0 for place in range(len(members))),
            rewards=tuple(1.0 if place % 2 == 0 else -1.0 for place in range(len(members))),
        )
        for key, members in by_group.items()
    ][: recipe.pipeline.groups_per_batch]
    tokens, seconds = [], []
    for version, part in enumerate([groups, groups, groups[: max(len(groups) // 2, 1)]]):
        batch = Batch(version=version, groups=part)
        took_s = _seconds(lambda batch=batch: step(batch))
        if version:
            tokens.append(float(sum(len(each) for group in part for each in group.completions)))
            seconds.append(took_s)
    return line_through(np.array(tokens), np.array(seconds))


def _seconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - begun
