"""Measure a model on evaluation sets: the rows of evals.jsonl and of `scalerl eval`."""

import math
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from typing import Any

from scalerl.config import Recipe
from scalerl.config.evaluation import EvaluationSettings
from scalerl.errors import GraderError
from scalerl.graders.sandbox.job import KINDS, STOPPED
from scalerl.loop.evaluate import EvalResult, eval_requests, evaluate
from scalerl.loop.seams import Engine
from scalerl.run.parts import Inputs, build_engine, load_inputs
from scalerl.run.prompts import EvalSet


def evaluate_set(
    eval_set: EvalSet,
    engine: Engine,
    inputs: Inputs,
    settings: EvaluationSettings,
    *,
    step: int,
    on_progress: Callable[[int, int], None] = lambda finished, total: None,
) -> EvalResult:
    """Sample and grade every prompt of a set; `on_progress` gets the number of finished completions and of all."""
    sampling = settings.sampling(eval_set.name)
    requests = eval_requests(
        eval_set.problems,
        encode=eval_set.prompts.tokens.__getitem__,
        plan=inputs.length.plan,
        samples_per_prompt=sampling.samples_per_prompt,
        seed=settings.seed,
        step=step,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
    )
    return evaluate(
        engine,
        requests,
        graders=inputs.graders,
        judge=eval_set.judge,
        prompts_hash=eval_set.prompts_hash,
        on_progress=lambda finished: on_progress(finished, len(requests)),
    )


def evaluate_model(recipe: Recipe, sets: Collection[str] = ()) -> list[dict[str, Any]]:
    """Measure the recipe's model, untrained, on evaluation sets, all of them or `sets`; return one row per set."""
    inputs = load_inputs(recipe, sets=sets)
    with closing(inputs.graders), closing(build_engine(inputs.model, recipe)) as engine:
        rows = []
        for eval_set in inputs.eval_sets:
            result = evaluate_set(eval_set, engine, inputs, recipe.evaluation, step=0)
            if result.num_graded == 0:
                raise no_verdicts(eval_set, result, inputs)
            interval = wilson(sum(result.num_correct), result.num_samples)
            rows.append(
                {
                    "set": eval_set.name,
                    "reward": result.reward,
                    "interval": list(interval),
                    **counts(result),
                    "num_prompts": len(result.num_correct),
                    "samples_per_prompt": result.samples_per_prompt,
                    "num_correct": list(result.num_correct),
                    "pass_at": {str(k): value for k, value in result.pass_at.items()},
                    "without_verdict": dict(result.num_without_verdict),
                }
            )
        return rows


def no_verdicts(eval_set: EvalSet, result: EvalResult, inputs: Inputs) -> GraderError:
    """Return the error for a set on which the grader gave no verdict at all, with the reasons."""
    name = eval_set.judge.name
    reasons = ", ".join(f"{num} x {reason}" for reason, num in result.num_without_verdict.items())
    error = next(iter(inputs.graders.first_errors.values()), None)
    return GraderError(
        f'"{name}" has a verdict on none of {result.num_samples} answers of {eval_set.name} '
        f"({reasons}{f': {error}' if error else ''})"
    )


def counts(result: EvalResult) -> dict[str, Any]:
    """Return what every row on an evaluation has besides its reward."""
    return {
        "num_samples": result.num_samples,
        "prompts_hash": result.prompts_hash,
        "truncated_frac": result.num_truncated / max(result.num_samples, 1),
        "length_mean": result.mean_length,
        **({} if result.score is None else {"score": result.score}),
        **{f"score/{name}": value for name, value in result.scores.items()},
        **{f"grader/{reason}": num for reason, num in result.num_without_verdict.items()},
        **outcome_columns(result.num_outcomes),
    }


def outcome_columns(num_outcomes: Mapping[str, int]) -> dict[str, float]:
    """Return the columns that count what graders saw; where programs ran, with the share stopped by the sandbox."""
    columns: dict[str, float] = {f"outcome/{name}": num for name, num in sorted(num_outcomes.items())}
    if num_outcomes.keys() & set(KINDS):
        stopped = sum(num_outcomes.get(name, 0) for name in STOPPED)
        columns["outcome/stopped_frac"] = stopped / sum(num_outcomes.get(name, 0) for name in KINDS)
    return columns


def wilson(num_correct: int, num: int, z: float = 1.645) -> tuple[float, float]:
    """Return Wilson's 90 % interval of a rate; it stays within [0, 1]."""
    if num == 0:
        return 0.0, 1.0
    rate, shrink = num_correct / num, 1 + z * z / num
    middle = (rate + z * z / (2 * num)) / shrink
    half = z * math.sqrt(rate * (1 - rate) / num + z * z / (4 * num * num)) / shrink
    return max(middle - half, 0.0), min(middle + half, 1.0)
