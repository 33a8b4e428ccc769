"""Check a vLLM engine before a run uses it: compare its log-probs with the learner's at equal weights.

The engine depends on parts of vLLM without a stable interface, so a version number says little. Instead, a few short
answers are sampled: their log-probs must equal the learner's, a push in the middle must keep their caches, and an
interruption must appear where it was planned. Because the engine may start with random weights, the same answers show
that pushed weights arrive.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scalerl.errors import RecipeError
from scalerl.training.models.load import LoadedModel, head, hidden_states
from scalerl.training.rl.logprobs import head_logits
from scalerl.training.rollout.progress import FREE, CompletionProgress
from scalerl.training.rollout.vllm.install import TESTED
from scalerl.training.types import Completion, LengthPlan, Problem, Request

MOST_KL = 0.01
"""Largest KL between generator and learner, as in the alarm of a run; rounding a body to bf16 gives far less."""
MOST_KL_QUANTISED = 0.1
BUDGET = 6
ANSWER = 4
NUM_REQUESTS = 8


def check_engine(
    engine: Any,
    model: LoadedModel,
    weights: Mapping[str, Any],
    *,
    context: int,
    quantised: bool = False,
    records_experts: bool = False,
) -> float:
    """Sample, push the same weights again on the way, and compare; return the KL, or raise RecipeError.

    `weights` are the model's weights, which were pushed before.
    """
    requests = _requests(model, context)
    completions = _drained(engine, requests, weights)
    plans = {each.key: each.length for each in requests}
    if sorted(each.request.key for each in completions) != sorted(plans):
        raise _refusal("it does not answer every request exactly once")
    if not all(_follows(each, plans[each.request.key]) for each in completions):
        raise _refusal("an answer does not have the planned length or forced tokens")
    if records_experts and any(each.experts is None for each in completions):
        raise _refusal("it does not return the experts of tokens, which model.router_replay needs")
    kl = _kl(model, completions)
    most = MOST_KL_QUANTISED if quantised else MOST_KL
    if not kl <= most:
        raise _refusal(f"its log-probs differ from the learner's at equal weights (KL {kl:.2g}, at most {most:g})")
    return kl


def _refusal(fault: str) -> RecipeError:
    return RecipeError(
        f'rollout.engine = "vllm": the installed vLLM fails the check at start-up: {fault}. Install a tested version '
        f'({" or ".join(TESTED)}), or set rollout.engine = "torch"'
    )


def _requests(model: LoadedModel, context: int) -> list[Request]:
    """Return requests, every second of which is interrupted; they are short enough for a small context."""
    vocabulary = head(model.model).weight.shape[0]
    budget = min(BUDGET, max(context // 3, 1))
    answer = min(ANSWER, max(context // 3, 1))
    marker = next(token for token in range(vocabulary) if token not in model.stop_tokens)
    plans = (
        LengthPlan(answer_budget=budget),
        LengthPlan(thinking_budget=budget, marker=(marker,), answer_budget=answer),
    )
    room = max(context - budget - answer - 1, 1)
    rng = np.random.default_rng(0)
    problem = Problem(id="check", prompt="", answer="", task="check")
    return [
        Request(
            group="check",
            index=index,
            problem=problem,
            prompt_tokens=tuple(rng.integers(0, vocabulary, min(2 + 5 * index, room)).tolist()),
            seed=index,
            length=plans[index % 2],
            temperature=1.0 if index % 4 < 2 else 0.7,
        )
        for index in range(NUM_REQUESTS)
    ]


def _drained(engine: Any, requests: Sequence[Request], weights: Mapping[str, Tensor]) -> list[Completion]:
    engine.submit(requests)
    completions = list(engine.poll())
    engine.push_weights(weights, engine.version)
    while engine.num_pending:
        completions += engine.poll()
    return completions


def _follows(completion: Completion, plan: LengthPlan) -> bool:
    """Return whether a completion has the forced tokens of its plan and ended where it should."""
    progress = CompletionProgress(plan)
    for index, token in enumerate(completion.tokens.tolist()):
        if progress.forced(index) not in (FREE, token):
            return False
        progress.take(token)
    return completion.finish == "stop" or len(completion) == progress.limit


@torch.no_grad()
def _kl(model: LoadedModel, completions: Sequence[Completion]) -> float:
    """Return the mean of r - 1 - log r over sampled tokens, r = learner's probability / generator's (rl/metrics.py)."""
    last = head(model.model)
    log_ratios = []
    for completion in completions:
        prompt = completion.request.prompt_tokens
        ids = torch.tensor([[*prompt, *completion.tokens.tolist()]], device=model.device)
        hidden = hidden_states(model.model, ids)[0, len(prompt) - 1 : -1]
        logits = head_logits(hidden, last.weight, bias=last.bias, fp32=True).float()
        log_probs = torch.log_softmax(logits / completion.request.temperature, dim=-1)
        own = log_probs.gather(1, ids[0, len(prompt) :, None])[:, 0].cpu().numpy()
        log_ratios.append((own - completion.log_probs)[~completion.forced])
    joined = np.concatenate(log_ratios).astype(np.float64)
    return float(np.mean(np.expm1(joined) - joined))
