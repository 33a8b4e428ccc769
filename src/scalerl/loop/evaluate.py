"""Measure a policy on withheld problems: mean@n of `correct`, paired across runs that share an evaluation seed.

A completion that its grader could not judge counts as wrong, and the reasons are counted beside it.
"""

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from scalerl.graders.supervisor import Reason
from scalerl.loop.grading import GraderRunner, Judge, Verdict
from scalerl.types import Completion, LengthPlan, Problem, Request, derive_seed


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResult:
    """One evaluation of one set."""

    num_correct: tuple[int, ...]
    """One entry per prompt, in the order of the set."""
    samples_per_prompt: int
    num_graded: int
    """Completions with a verdict."""
    num_without_verdict: Mapping[Reason, int]
    """The other completions, by reason; each counts as wrong."""
    num_outcomes: Mapping[str, int] = field(default_factory=dict)
    """Completions by the outcome that their grader named, such as "timeout" for a program."""
    score: float | None = None
    """The mean of the graders' values over all completions; None if every value was 0 or 1, so that it is `reward`."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """The mean value of each of several graders."""
    num_truncated: int
    mean_length: float
    prompts_hash: str
    last_version: int = 0
    """The newest version of the policy that sampled a token."""
    conversations: Mapping[str, float] = field(default_factory=dict)
    """Means over conversations with an environment: turns, tool calls, failed ones; empty without any."""
    correct_turns: tuple[tuple[int, ...], ...] = ()
    """The turns of each correct conversation, for each prompt, in rising order; empty without conversations."""

    @property
    def num_samples(self) -> int:
        return len(self.num_correct) * self.samples_per_prompt

    @property
    def reward(self) -> float | None:
        """mean@n: the mean of `correct`, in [0,1]; None if no completion at all got a verdict."""
        return sum(self.num_correct) / self.num_samples if self.num_graded else None

    @property
    def pass_at(self) -> dict[int, float]:
        """pass@k for k = 1, 2, 4, ... up to the samples of a prompt."""
        counts = [2**power for power in range(self.samples_per_prompt.bit_length())]
        return {k: pass_at(self.num_correct, self.samples_per_prompt, k) for k in counts}

    @property
    def pass_at_turns(self) -> dict[int, dict[int, float]]:
        """pass@(k, T) by T and k: a sample counts only if it was correct within T turns; empty without conversations.

        A conversation with fewer turns at hand might have gone otherwise, so this is a lower bound of what a limit of T
        turns would give.
        """
        return pass_at_turns(self.correct_turns, self.samples_per_prompt)


def pass_at(num_correct: Sequence[int], num_samples: int, k: int) -> float:
    """Return the unbiased estimate of pass@k: the mean over prompts of 1 - C(n - c, k) / C(n, k).

    The probability that at least one of k samples, drawn without replacement from the n of a prompt, is among its c
    correct ones (Chen et al. 2021, arXiv 2107.03374, equation 1).
    """
    if not 1 <= k <= num_samples:
        raise ValueError(f"pass@{k} needs at least {k} samples of a prompt, and there are {num_samples}")
    failures = [math.comb(num_samples - correct, k) / math.comb(num_samples, k) for correct in num_correct]
    return 1.0 - sum(failures) / len(failures) if failures else 0.0


def pass_at_turns(correct_turns: Sequence[Sequence[int]], num_samples: int) -> dict[int, dict[int, float]]:
    """Return pass@(k, T) by T, from one to the most turns of a correct conversation, and by k."""
    ks = [2**power for power in range(num_samples.bit_length())]
    most = max((turns for of_prompt in correct_turns for turns in of_prompt), default=0)
    within = {
        limit: [sum(turns <= limit for turns in of_prompt) for of_prompt in correct_turns]
        for limit in range(1, most + 1)
    }
    return {limit: {k: pass_at(counts, num_samples, k) for k in ks} for limit, counts in within.items()}


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
    environment: str = "",
) -> list[Request]:
    """Return one request per sample. Noise is keyed by (seed, prompt, index, step): paired across runs, independent
    between steps. A prompt that a set holds several times gets noise of its own each time."""
    requests = []
    times_seen: Counter[str] = Counter()
    for problem in problems:
        prompt_tokens = tuple(encode(problem))
        repeat = times_seen[problem.content_hash]
        times_seen[problem.content_hash] += 1
        for index in range(samples_per_prompt):
            # The first has no number, so that its noise does not depend on whether others follow.
            key = derive_seed("evaluation", seed, problem.content_hash, index, step, *([repeat] if repeat else []))
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
                    environment=environment,
                )
            )
    return requests


def conversation_sums(completions: Sequence[Completion]) -> Counter[str]:
    """Return sums over the conversations among completions, for `conversation_means`."""
    sums: Counter[str] = Counter()
    for completion in completions:
        if completion.episode is not None:
            sums["num"] += 1
            sums["turns"] += len(completion.turns)
            sums["calls"] += completion.episode.num_calls
            sums["errors"] += completion.episode.num_errors
            sums["branches"] += completion.episode.num_branches
            sums["tokens"] += len(completion)
            sums["observed"] += len(completion) - completion.num_written
    return sums


def conversation_means(sums: Mapping[str, float]) -> dict[str, float]:
    """Return what rows say of conversations: turns, the share of tokens that are observations, calls and errors."""
    if not sums.get("num"):
        return {}
    return {
        "turns_mean": sums["turns"] / sums["num"],
        "observed_frac": sums["observed"] / sums["tokens"],
        "tool_calls_mean": sums["calls"] / sums["num"],
        "tool_errors_frac": sums["errors"] / max(sums["calls"], 1),
        **({"branches_mean": sums["branches"] / sums["num"]} if sums["branches"] else {}),
    }


class Evaluation:
    """One evaluation of one set while it is under way: grades the completions it is given, and counts."""

    def __init__(self, requests: Sequence[Request], *, graders: GraderRunner, judge: Judge, prompts_hash: str) -> None:
        self.num_requests = len(requests)
        self.num_finished = 0
        """Completions that are graded."""
        self.last_version = 0
        """The newest version of the policy that sampled a token."""
        self._graders, self._judge, self._prompts_hash = graders, judge, prompts_hash
        self._order: dict[str, int] = {}
        for request in requests:
            self._order.setdefault(request.group, len(self._order))
        self._num_correct = [0] * len(self._order)
        self._num_without_verdict: Counter[Reason] = Counter()
        self._num_outcomes: Counter[str] = Counter()
        self._value_sum, self._has_shares = 0.0, len(judge.graders) > 1
        self._score_sums: defaultdict[str, float] = defaultdict(float)
        self._num_sampled = self._num_graded = self._num_truncated = self._num_tokens = 0
        self._conversations: Counter[str] = Counter()
        self._correct_turns: list[list[int]] = [[] for _ in self._order]

    @property
    def all_sampled(self) -> bool:
        return self._num_sampled == self.num_requests

    @property
    def done(self) -> bool:
        return self.num_finished == self.num_requests

    def take(self, completions: Sequence[Completion]) -> None:
        """Grade these completions and count the verdicts that have arrived; wait a moment if all are sampled."""
        self._graders.submit(completions, self._judge, "evaluation")
        self._num_sampled += len(completions)
        self._num_truncated += sum(completion.truncated for completion in completions)
        self._num_tokens += sum(completion.num_written for completion in completions)
        self._conversations.update(conversation_sums(completions))
        self.last_version = max([self.last_version, *(int(completion.versions[-1]) for completion in completions)])
        for verdict in self._graders.poll("evaluation", wait=self.all_sampled):
            self._count(verdict)

    def _count(self, verdict: Verdict) -> None:
        self.num_finished += 1
        self._num_graded += verdict.correct is not None
        if verdict.reason is not None:
            self._num_without_verdict[verdict.reason] += 1
        if verdict.outcome:
            self._num_outcomes[verdict.outcome] += 1
        place = self._order[verdict.completion.request.group]
        self._num_correct[place] += verdict.correct is True
        if verdict.correct:
            self._correct_turns[place].append(len(verdict.completion.turns))
        self._value_sum += verdict.value or 0.0
        self._has_shares |= verdict.value not in (None, 0.0, 1.0)
        for name, value in verdict.scores.items():
            self._score_sums[name] += value

    def result(self) -> EvalResult:
        """Return what was measured; call it when `done`."""
        num = self.num_requests
        return EvalResult(
            num_correct=tuple(self._num_correct),
            samples_per_prompt=num // max(len(self._order), 1),
            num_graded=self._num_graded,
            num_without_verdict=self._num_without_verdict,
            num_outcomes=self._num_outcomes,
            score=self._value_sum / num if self._has_shares and num else None,
            scores={name: total / num for name, total in self._score_sums.items()},
            num_truncated=self._num_truncated,
            mean_length=self._num_tokens / num if num else 0.0,
            prompts_hash=self._prompts_hash,
            last_version=self.last_version,
            conversations=conversation_means(self._conversations),
            correct_turns=tuple(tuple(sorted(of_prompt)) for of_prompt in self._correct_turns)
            if self._conversations
            else (),
        )


def hash_prompts(problems: Sequence[Problem]) -> str:
    """Return a hash that is equal for sets of the same prompts in the same order."""
    return hashlib.sha256("\n".join(problem.content_hash for problem in problems).encode()).hexdigest()[:16]
