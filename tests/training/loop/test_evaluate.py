"""Evaluations: which noise, and what is counted."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations

import pytest
from simulated import SimulatedEngine, complete

from scalerl.errors import EngineStalled
from scalerl.training.graders.pool import GraderSpec
from scalerl.training.loop.evaluate import (
    EvalResult,
    Evaluation,
    SetRequests,
    eval_requests,
    hash_prompts,
    pass_at,
    pass_at_turns,
)
from scalerl.training.loop.grading import GraderRunner, Judge, Purpose, Verdict, WeightedGrader
from scalerl.training.loop.watchdog import Watchdog, WatchedEngine
from scalerl.training.types import Completion, LengthPlan, Problem

PROBLEMS = [Problem(id=f"p{place}", prompt=f"{place}?", answer=str(place), task="simulated") for place in range(5)]


def requests(problems=PROBLEMS, seed=0, step=0):
    return eval_requests(
        "main",
        problems,
        encode=lambda problem: [ord(character) for character in problem.prompt],
        plan=lambda key: LengthPlan(answer_budget=256),
        samples_per_prompt=3,
        seed=seed,
        step=step,
        temperature=0.7,
        top_p=0.9,
    )


JUDGE = Judge(
    graders=(WeightedGrader(column="exact", spec=GraderSpec(name="exact")),),
    decode_all=lambda completions: [""] * len(completions),
)


def evaluate(engine, asked, *, graders, prompts_hash="h", seen: list[int] | None = None) -> EvalResult:
    """Sample all requests on an idle engine, and grade them."""
    progress = [] if seen is None else seen
    evaluation = Evaluation(
        engine,
        {"main": SetRequests(asked, JUDGE, prompts_hash)},
        graders=graders,
        on_progress=lambda finished, total: progress.append(finished),
    )
    assert evaluation.finish()
    return evaluation.results()["main"]


class Given(GraderRunner):
    """Verdicts of a function, each a poll late."""

    def __init__(self, verdict: Callable[[Completion], bool | None]) -> None:
        super().__init__()
        self._verdict = verdict
        self._due: list[Verdict] = []

    def submit(self, completions: Sequence[Completion], judge: Judge, purpose: Purpose) -> None:
        assert (judge, purpose) == (JUDGE, "evaluation")
        for one in completions:
            correct = self._verdict(one)
            value = None if correct is None else float(correct)
            reason = "timeout" if correct is None else None
            self._due.append(Verdict(subject=one, correct=correct, value=value, reason=reason))

    def poll(self, purpose: Purpose, *, wait: bool = False) -> list[Verdict]:
        assert purpose == "evaluation"
        marked, self._due = self._due[-1:], self._due[:-1]
        return marked


def test_eval_noise_is_paired_across_runs():
    first = requests()
    assert first == requests()
    assert len({request.seed for request in first}) == len(first) == 15
    for other in (requests(step=8), requests(seed=1)):
        assert not {request.seed for request in first} & {request.seed for request in other}
    # A prompt's noise does not depend on which others are asked.
    assert requests(PROBLEMS[2:]) == first[6:]
    assert (first[0].prompt_tokens, first[0].temperature, first[0].top_p) == ((48, 63), 0.7, 0.9)


def make_engine(kind: type[SimulatedEngine] = SimulatedEngine) -> SimulatedEngine:
    engine = kind(slots=4)
    engine.push_weights({"version": 0}, 0)
    return engine


def test_answers_without_verdict_count_as_wrong():
    def verdict(completion: Completion) -> bool | None:
        place, index = int(completion.request.problem.answer), completion.request.index
        return None if place == 4 else index < place

    engine, seen = make_engine(), []
    result = evaluate(engine, requests(), graders=Given(verdict), seen=seen)
    assert result.num_correct == (0, 1, 2, 3, 0)
    assert (result.num_graded, result.num_samples) == (12, 15)
    assert result.num_without_verdict == {"grader/timeout": 3}
    assert result.reward == 6 / 15
    assert result.mean_length == engine.work.decoded / 15
    assert seen == sorted(seen)
    assert seen[-1] == 15
    assert evaluate(engine, requests(), graders=Given(lambda _: None)).reward is None, "nothing has a verdict"


def test_an_engine_that_loses_a_request_ends_the_evaluation():
    class Forgetful(SimulatedEngine):
        def poll(self) -> list[Completion]:
            done = super().poll() if self.num_pending else []
            return [one for one in done if one.request.index]

    engine = WatchedEngine(make_engine(Forgetful), Watchdog(pytest.fail))
    with pytest.raises(EngineStalled, match="lost 5 requests"):
        evaluate(engine, requests(), graders=Given(lambda _: True))


def test_truncated_completions_are_counted():
    class Cutting(SimulatedEngine):
        def poll(self) -> list[Completion]:
            done = [complete(request, [0, 0]) for request in self.drop_pending()]
            return [one if one.request.index else replace(one, finish="length") for one in done]

    result = evaluate(make_engine(Cutting), requests(), graders=Given(lambda _: True))
    assert (result.num_truncated, result.num_samples, result.reward) == (5, 15, 1.0)


def test_equal_prompts_in_equal_order_have_equal_hashes():
    assert hash_prompts(PROBLEMS) == hash_prompts(list(PROBLEMS))
    assert hash_prompts(PROBLEMS) != hash_prompts(PROBLEMS[::-1])
    assert hash_prompts(PROBLEMS) != hash_prompts(PROBLEMS[:-1])


def test_repeated_prompts_get_noise_of_their_own():
    repeated = [replace(problem, id=f"{problem.id}/{repeat}") for repeat in range(8) for problem in PROBLEMS]
    seeds = [request.seed for request in requests(repeated)]
    assert len(set(seeds)) == len(seeds) == 8 * 15
    # The first of them has the noise it has alone.
    assert seeds[:15] == [request.seed for request in requests()]


def test_pass_at_k_is_the_share_of_draws_with_a_correct_one():
    counts, num = (0, 1, 3, 5), 5
    for k in (1, 2, 4, 5):
        drawn = [
            sum(any(index < correct for index in draw) for draw in combinations(range(num), k))
            / len(list(combinations(range(num), k)))
            for correct in counts
        ]
        assert pass_at(counts, num, k) == pytest.approx(sum(drawn) / 4)
    with pytest.raises(ValueError, match="pass@6 needs at least 6 samples"):
        pass_at(counts, num, 6)


def test_pass_at_turns_counts_answers_within_each_limit():
    by_turns = pass_at_turns([(1, 3), (3, 3, 3, 3), ()], 4)
    assert list(by_turns) == [1, 2, 3]
    assert by_turns[1] == {k: pass_at((1, 0, 0), 4, k) for k in (1, 2, 4)}
    assert by_turns[2] == by_turns[1]
    assert by_turns[3] == {k: pass_at((2, 4, 0), 4, k) for k in (1, 2, 4)}
    assert pass_at_turns([(), ()], 4) == {}


def test_score_is_the_mean_of_the_values():
    class Halves(Given):
        def poll(self, purpose: Purpose, *, wait: bool = False) -> list[Verdict]:
            return [replace(made, value=0.5, correct=False) for made in super().poll(purpose, wait=wait)]

    result = evaluate(make_engine(), requests(), graders=Halves(lambda _: True))
    assert (result.reward, result.score) == (0.0, 0.5)
    assert evaluate(make_engine(), requests(), graders=Given(lambda _: True)).score is None
