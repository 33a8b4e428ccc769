"""Pass rates of a model that SFT made, sampled by transformers' own `generate`, as a check on our engine."""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch

from scalerl.config.parts import GradingSettings
from scalerl.loop.grading import opened_thinking, verdicts
from scalerl.loop.requests import Text
from scalerl.tasks.task import Task
from scalerl.types import derive_seed

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_SAMPLES = 4
"""Completions of each problem for the pass rate at temperature 1."""
_GENERATE_BATCH = 500


def measure(
    model: "PreTrainedModel", text: Text, task: Task, *, grading: GradingSettings | None = None, max_new_tokens: int
) -> dict[str, Any]:
    """Return the model's pass rates on the task's evaluation problems, as made_by.json holds them."""
    rate = functools.partial(pass_rate, model, text, task, grading=grading, max_new_tokens=max_new_tokens)
    return {
        "num_prompts": len(task.evaluation),
        "greedy": rate(temperature=0.0),
        "temperature_1": rate(samples_per_prompt=_SAMPLES),
        "samples_per_prompt_at_temperature_1": _SAMPLES,
    }


@torch.no_grad()
def pass_rate(
    model: "PreTrainedModel",
    text: Text,
    task: Task,
    *,
    samples_per_prompt: int = 1,
    temperature: float = 1.0,
    max_new_tokens: int,
    seed: int = 0,
    grading: GradingSettings | None = None,
) -> float | None:
    """Return the mean of `correct`, sampled by transformers' own `generate`, as a check on our engine.

    Prompts, stop tokens and decoding are those of training. Temperature 0 is greedy. The mean is over answers with a
    verdict; None if there is none.
    """
    problems = [problem for problem in task.evaluation for _ in range(samples_per_prompt)]
    sampling: dict[str, Any] = {"do_sample": False}
    if temperature:
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    sampling |= {"eos_token_id": list(text.stop_tokens), "pad_token_id": text.tokenizer.pad_token_id}
    prompts = text.encode_prompts([problem.prompt for problem in problems], task.prompt)
    opening = opened_thinking(text.decode(next(iter(prompts), ())), task)
    answers: list[tuple[str, str]] = []
    model.eval()
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed("pass rate", seed))
        for start in range(0, len(problems), _GENERATE_BATCH):
            batch = {"input_ids": prompts[start : start + _GENERATE_BATCH]}
            inputs = text.tokenizer.pad(batch, return_tensors="pt", padding_side="left").to(model.device)
            outputs = cast(Any, model).generate(**inputs, max_new_tokens=max_new_tokens, **sampling)
            completions = outputs[:, inputs["input_ids"].shape[1] :].tolist()
            answers.extend(
                (opening + text.decode(up_to_stop(tokens, text.stop_tokens)), problem.answer)
                for problem, tokens in zip(problems[start:], completions, strict=False)
            )
    judged = [verdict for verdict in verdicts(task, answers, grading) if verdict is not None]
    return sum(judged) / len(judged) if judged else None


def up_to_stop(tokens: Sequence[int], stop_tokens: Sequence[int]) -> Sequence[int]:
    """Return tokens up to the stop token, without the padding that follows it in a batch."""
    ends = (place for place, token in enumerate(tokens, start=1) if token in stop_tokens)
    return tokens[: next(ends, len(tokens))]
