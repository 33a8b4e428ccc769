"""Requests for the contract tests, over a vocabulary of 64."""

from collections.abc import Iterable

import numpy as np

from scalerl.training.loop.seams import Engine
from scalerl.training.types import Completion, LengthPlan, Problem, Request

PROBLEM = Problem(id="p", prompt="?", answer="!", task="none")


def make_request(
    number: int = 0,
    *,
    prompt: Iterable[int] = (1, 2, 3),
    plan: LengthPlan | None = None,
    seed: int | None = None,
    temperature: float = 1.0,
    top_p: float = 1.0,
) -> Request:
    return Request(
        group=f"0/{number}",
        index=0,
        problem=PROBLEM,
        prompt_tokens=tuple(prompt),
        seed=1000 + number if seed is None else seed,
        length=plan or LengthPlan(answer_budget=8),
        temperature=temperature,
        top_p=top_p,
    )


def mixed_requests(count: int, *, longest: int = 24) -> list[Request]:
    """Prompts of many lengths, some of them shared; answers of many lengths; some thinking plans."""
    rng = np.random.default_rng(count)
    requests = []
    for number in range(count):
        prompt = rng.integers(0, 64, rng.integers(1, 21)).tolist()
        if number % 4 == 3:
            prompt = requests[-1].prompt_tokens
        answer = int(rng.integers(1, longest // 2))
        plan = LengthPlan(answer_budget=answer)
        if number % 3 == 2:
            budget = int(rng.integers(0, longest // 2))
            plan = LengthPlan(thinking_budget=budget, thinking_end=(5,), marker=(6, 7, 5), answer_budget=answer)
        requests.append(make_request(number, prompt=prompt, plan=plan, temperature=float(rng.choice([0.7, 1.0, 1.5]))))
    return requests


def drain(engine: Engine, *, max_polls: int = 10_000) -> list[Completion]:
    """Poll until nothing is pending."""
    completions = []
    for _ in range(max_polls):
        completions += engine.poll()
        if not engine.num_pending:
            return completions
    raise AssertionError(f"{engine.num_pending} requests still pending after {max_polls} polls")


def advance(engine: Engine, num_tokens: int, *, max_polls: int = 10_000) -> list[Completion]:
    """Poll until the engine has sampled at least this many tokens more; one that runs by itself may be further."""
    wanted, completions = engine.work.decoded + num_tokens, []
    for _ in range(max_polls):
        completions += engine.poll()
        if engine.work.decoded >= wanted:
            return completions
    raise AssertionError(f"only {engine.work.decoded} of {wanted} tokens after {max_polls} polls")


def by_key(completions: Iterable[Completion]) -> dict[str, Completion]:
    return {completion.request.key: completion for completion in completions}
