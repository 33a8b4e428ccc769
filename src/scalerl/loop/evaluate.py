"""Measure a policy on withheld problems: mean@n of `correct`, paired across runs that share an evaluation seed."""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scalerl.graders.pool.pool import Reason
from scalerl.loop.grading import GraderRunner, Judge
from scalerl.types import LengthPlan, Problem, Request, derive_seed

if TYPE_CHECKING:
    from scalerl.loop.seams import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResult:
    """One evaluation of one set."""

    num_correct: tuple[int, ...]
    """One entry per prompt, in the order of the set."""
    num_graded: int
    """Completions with a verdict; `reward` is the mean over these."""
    num_samples: int
    num_without_verdict: Mapping[Reason, int]
    """The other completions, by reason."""
    num_truncated: int
    mean_length: float
    prompts_hash: str

    @property
    def reward(self) -> float | None:
        """The mean of `correct`, in [0,1]; None if no completion got a verdict."""
        return sum(self.num_correct) / self.num_graded if self.num_graded else None


def eval_requests(
    problems: Sequence[Problem],
    *,
    encode: Callable[[Problem], Sequence[int]],
    plan: Callable[[int], LengthPlan],
    samples_per_prompt: int,
    seed: int,
    step: int,
    temperature: float,
    top_p: float,
) -> list[Request]:
    """Return one request per sample. Noise is keyed by (seed, prompt, index, step): paired across runs, independent
    between steps."""
    requests = []
    for problem in problems:
        prompt_tokens = tuple(encode(problem))
        for index in range(samples_per_prompt):
            key = derive_seed("evaluation", seed, problem.content_hash, index, step)
            requests.append(
                Request(
                    group=f"eval/{problem.id}",
                    index=index,
                    problem=problem,
                    prompt_tokens=prompt_tokens,
                    seed=key,
                    length=plan(key),
                    temperature=temperature,
                    top_p=top_p,
                )
            )
    return requests


def evaluate(
    engine: "Engine",
    requests: Sequence[Request],
    *,
    graders: GraderRunner,
    judge: Judge,
    prompts_hash: str,
    on_progress: Callable[[int], None] = lambda finished: None,
) -> EvalResult:
    """Sample all requests on an otherwise idle engine, and grade them."""
    engine.submit(requests)
    order: dict[str, int] = {}
    for request in requests:
        order.setdefault(request.group, len(order))
    num_correct = [0] * len(order)
    num_without_verdict: Counter[Reason] = Counter()
    sampled = finished = num_graded = num_truncated = num_tokens = 0
    while finished < len(requests):
        completions = engine.poll() if sampled < len(requests) else []
        graders.submit(completions, judge, "evaluation")
        sampled += len(completions)
        num_truncated += sum(completion.truncated for completion in completions)
        num_tokens += sum(map(len, completions))
        for verdict in graders.poll("evaluation", wait=sampled == len(requests)):
            finished += 1
            num_graded += verdict.correct is not None
            if verdict.reason is not None:
                num_without_verdict[verdict.reason] += 1
            num_correct[order[verdict.completion.request.group]] += verdict.correct is True
        on_progress(finished)
    return EvalResult(
        num_correct=tuple(num_correct),
        num_graded=num_graded,
        num_samples=len(requests),
        num_without_verdict=num_without_verdict,
        num_truncated=num_truncated,
        mean_length=num_tokens / len(requests) if requests else 0.0,
        prompts_hash=prompts_hash,
    )


def hash_prompts(problems: Sequence[Problem]) -> str:
    """Return a hash that is equal for sets of the same prompts in the same order."""
    return hashlib.sha256("\n".join(problem.content_hash for problem in problems).encode()).hexdigest()[:16]
