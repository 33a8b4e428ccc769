"""Measure a policy on withheld problems: mean@n of `correct`, paired across runs that share an evaluation seed.

A completion that its grader could not judge counts as wrong, and the reasons are counted separately.
"""

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from scalerl.training.loop.grading import GraderRunner, Judge, Verdict, score_columns
from scalerl.training.loop.seams import Engine
from scalerl.training.types import Completion, LengthPlan, Problem, Request, derive_seed


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResult:
    """One evaluation of one set."""

    num_correct: tuple[int, ...]
    """One entry per prompt, in the order of the set."""
    samples_per_prompt: int
    num_graded: int
    """Completions with a verdict."""
    num_without_verdict: Mapping[str, int]
    """Number of completions without a verdict, by column, such as "grader/timeout"; each counts as wrong."""
    num_outcomes: Mapping[str, int] = field(default_factory=dict)
    """Number of completions by the outcome that their grader named, such as "timeout" for a program."""
    score: float | None = None
    """Mean of the graders' values over all completions; None if all are 0 or 1, since it then equals `reward`."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """The mean value of each of several graders."""
    num_truncated: int
    mean_length: float
    prompts_hash: str
    conversations: Mapping[str, float] = field(default_factory=dict)
    """Means over conversations with an environment: turns, tool calls, failed calls; empty without conversations."""
    correct_turns: tuple[tuple[int, ...], ...] = ()
    """The turns of each correct conversation, for each prompt, in rising order; empty without conversations."""

    @property
    def num_samples(self) -> int:
        return len(self.num_correct) * self.samples_per_prompt

    @property
    def reward(self) -> float | None:
        """mean@n: the mean of `correct`, in [0,1]; None if no completion has a verdict."""
        return sum(self.num_correct) / self.num_samples if self.num_graded else None

    @property
    def pass_at(self) -> dict[int, float]:
        """pass@k for k = 1, 2, 4, ... up to the number of samples per prompt."""
        return _pass_rates(self.num_correct, self.samples_per_prompt)

    @property
    def pass_at_turns(self) -> dict[int, dict[int, float]]:
        """pass@(k, T) by T and k: a sample counts only if it was correct within T turns; empty without conversations.

        A model that sees a limit of T turns may answer sooner, so this is a lower bound of the rate under that limit.
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
    most = max(itertools.chain.from_iterable(correct_turns), default=0)
    rates = {}
    for limit in range(1, most + 1):
        num_within = []
        for of_prompt in correct_turns:
            num_within.append(sum(turns <= limit for turns in of_prompt))
        rates[limit] = _pass_rates(num_within, num_samples)
    return rates


def _pass_rates(num_correct: Sequence[int], num_samples: int) -> dict[int, float]:
    ks = [2**power for power in range(num_samples.bit_length())]
    return {k: pass_at(num_correct, num_samples, k) for k in ks}


def eval_requests(
    set_name: str,
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
    between steps. If a set contains a prompt several times, each occurrence has its own noise."""
    requests = []
    times_seen: Counter[str] = Counter()
    for problem in problems:
        prompt_tokens = tuple(encode(problem))
        repeat = times_seen[problem.content_hash]
        times_seen[problem.content_hash] += 1
        # The first has no number, so that its noise does not depend on whether others follow.
        number = (repeat,) if repeat else ()
        for index in range(samples_per_prompt):
            key = derive_seed("evaluation", seed, problem.content_hash, index, step, *number)
            requests.append(
                Request(
                    group=f"eval/{set_name}/{problem.id}",
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
            sums["turns"] += completion.num_turns
            sums["calls"] += completion.episode.num_calls
            sums["errors"] += completion.episode.num_errors
            sums["branches"] += completion.episode.num_branches
            num_tokens = sum(map(len, completion.sequences))
            sums["tokens"] += num_tokens
            sums["observed"] += num_tokens - completion.num_written
    return sums


def conversation_means(sums: Mapping[str, float]) -> dict[str, float]:
    """Return the columns about conversations: turns, the share of tokens that are observations, calls and errors."""
    if not sums.get("num"):
        return {}
    means = {
        "turns_mean": sums["turns"] / sums["num"],
        "observed_frac": sums["observed"] / sums["tokens"],
        "tool_calls_mean": sums["calls"] / sums["num"],
        "tool_errors_frac": sums["errors"] / max(sums["calls"], 1),
    }
    if sums["branches"]:
        means["branches_mean"] = sums["branches"] / sums["num"]
    return means


class SetRequests(NamedTuple):
    """The requests of an evaluation on one set, and the judge of the answers."""

    requests: Sequence[Request]
    judge: Judge
    prompts_hash: str


class Evaluation:
    """One evaluation, of all sets at once."""

    def __init__(
        self,
        engine: Engine,
        sets: Mapping[str, SetRequests],
        *,
        graders: GraderRunner,
        on_progress: Callable[[int, int], None] = lambda finished, total: None,
    ) -> None:
        """Submit all requests. `on_progress` is called with the graded and all completions."""
        self._engine = engine
        self._graders = graders
        self._on_progress = on_progress
        self._answers = {name: _Answers(each) for name, each in sets.items()}
        requests: list[Request] = []
        self._set_of: dict[str, str] = {}
        for name, each in sets.items():
            requests += each.requests
            self._set_of |= dict.fromkeys((request.group for request in each.requests), name)
        self._num_requests = len(requests)
        self._num_sampled = 0
        self._num_graded = 0
        engine.submit(requests)

    def finish(self, stop: Callable[[], bool] = lambda: False) -> bool:
        """Sample and grade everything; return False if `stop` ended it early."""
        while self._num_graded < self._num_requests:
            if stop():
                return False
            is_sampled = self._num_sampled == self._num_requests
            completions = [] if is_sampled else self._engine.poll()
            self._take(completions)
        return True

    def _take(self, completions: Sequence[Completion]) -> None:
        """Submit these completions for grading and collect verdicts; wait briefly if everything is sampled."""
        for name, answers in self._answers.items():
            of_set = [completion for completion in completions if self._set_of[completion.request.group] == name]
            self._graders.submit(of_set, answers.judge, "evaluation")
            answers.sampled(of_set)
        self._num_sampled += len(completions)
        for verdict in self._graders.poll("evaluation", wait=self._num_sampled == self._num_requests):
            self._answers[self._set_of[verdict.subject.request.group]].graded(verdict)
            self._num_graded += 1
        self._on_progress(self._num_graded, self._num_requests)

    def results(self) -> dict[str, EvalResult]:
        """Return the result of each set, once everything is graded."""
        return {name: answers.result() for name, answers in self._answers.items()}


class _Answers:
    """The answers on one set."""

    def __init__(self, of_set: SetRequests) -> None:
        self.judge = of_set.judge
        self._prompts_hash = of_set.prompts_hash
        groups = dict.fromkeys(request.group for request in of_set.requests)
        self._places = {group: place for place, group in enumerate(groups)}
        self._verdicts: list[tuple[int, int, Verdict]] = []
        """Index of the prompt, turns of the completion, and its verdict without the tokens, to save memory."""
        self._sums: Counter[str] = Counter()

    def sampled(self, completions: Sequence[Completion]) -> None:
        self._sums.update(conversation_sums(completions))
        for completion in completions:
            self._sums.update(truncated=completion.truncated, written=completion.num_written)

    def graded(self, verdict: Verdict) -> None:
        place = self._places[verdict.subject.request.group]
        turns = verdict.subject.num_turns
        self._verdicts.append((place, turns, replace(verdict, subject=None)))

    def result(self) -> EvalResult:
        verdicts = [verdict for _, _, verdict in self._verdicts]
        num = max(len(self._verdicts), 1)
        correct_turns: list[list[int]] = [[] for _ in self._places]
        for place, turns, verdict in self._verdicts:
            if verdict.correct:
                correct_turns[place].append(turns)
        has_shares = len(self.judge.graders) > 1 or any(each.value not in (None, 0.0, 1.0) for each in verdicts)
        score = None
        if has_shares:
            score = sum(verdict.value or 0.0 for verdict in verdicts) / num
        scores = {}
        for name in score_columns(verdicts):
            scores[name] = sum(verdict.scores.get(name, 0.0) for verdict in verdicts) / num
        sorted_turns: tuple[tuple[int, ...], ...] = ()
        if self._sums["num"]:
            sorted_turns = tuple(tuple(sorted(turns)) for turns in correct_turns)
        return EvalResult(
            num_correct=tuple(map(len, correct_turns)),
            samples_per_prompt=len(self._verdicts) // max(len(self._places), 1),
            num_graded=sum(verdict.correct is not None for verdict in verdicts),
            num_without_verdict=Counter(verdict.column for verdict in verdicts if verdict.reason is not None),
            num_outcomes=Counter(verdict.outcome for verdict in verdicts if verdict.outcome),
            score=score,
            scores=scores,
            num_truncated=self._sums["truncated"],
            mean_length=self._sums["written"] / num,
            prompts_hash=self._prompts_hash,
            conversations=conversation_means(self._sums),
            correct_turns=sorted_turns,
        )


def hash_prompts(problems: Sequence[Problem]) -> str:
    """Return a hash that is equal for sets of the same prompts in the same order."""
    return hashlib.sha256("\n".join(problem.content_hash for problem in problems).encode()).hexdigest()[:16]
