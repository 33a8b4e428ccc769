import copy
import functools
import itertools
import json
import random
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.training.tasks.curriculum import (
    Curriculum,
    Issued,
    LeftOut,
    PassRecord,
    no_positive_resampling,
    pools,
    uniform,
)
from scalerl.training.types import derive_seed

LATEST: LeftOut = functools.partial(no_positive_resampling, threshold=0.9, history="latest")
CUMULATIVE: LeftOut = functools.partial(no_positive_resampling, threshold=0.9, history="cumulative")
RULES = {"latest": LATEST, "cumulative": CUMULATIVE, "uniform": uniform}


def ids(**sizes: int) -> dict[str, list[str]]:
    return {name: [f"{name}/{number}" for number in range(size)] for name, size in sizes.items()}


def make(num_problems=3, *, seed=0, left_out: LeftOut = LATEST):
    return Curriculum([f"p{number}" for number in range(num_problems)], seed=seed, left_out=left_out)


def take(curriculum: Curriculum) -> Issued:
    issued = curriculum.next()
    assert issued is not None
    return issued


def solve(curriculum: Curriculum, issued: Issued, num_correct: int, num_graded: int = 10) -> None:
    curriculum.graded(issued.key, num_correct=num_correct, num_graded=num_graded, num_asked=num_graded)


def task_of(issued: Issued) -> str:
    return issued.problem_id.partition("/")[0]


class Reference:
    """The same rules, worked out from the whole history at every call."""

    def __init__(self, problem_ids: Mapping[str, list[str]], weights: Mapping[str, float], seed: int, rule: str):
        self.problem_ids, self.weights, self.rule = problem_ids, weights, rule
        self.seeds = {name: derive_seed("task of a mixture", seed, name) if weights else seed for name in problem_ids}
        self.issued: list[Issued] = []
        self.grades: list[tuple[Issued, int, int]] = []
        self.trained: list[str] = []
        self.to_reissue: list[Issued] = []

    def is_solved(self, problem_id: str) -> bool:
        groups = [
            (correct, graded) for issued, correct, graded in self.grades if issued.problem_id == problem_id and graded
        ]
        if self.rule == "uniform":
            return False
        for number in range(len(groups)):
            seen = groups[number : number + 1] if self.rule == "latest" else groups[: number + 1]
            if sum(correct for correct, _ in seen) >= 0.9 * sum(graded for _, graded in seen) - 1e-9:
                return True
        return False

    def is_exhausted(self, name: str) -> bool:
        return all(map(self.is_solved, self.problem_ids[name]))

    @property
    def in_flight(self) -> list[Issued]:
        graded = {issued.key for issued, _, _ in self.grades}
        return [issued for issued in self.issued if issued.key not in graded]

    @property
    def untrained(self) -> list[Issued]:
        return [issued for issued, _, _ in self.grades if issued.key not in self.trained]

    def next(self) -> Issued | None:
        if self.to_reissue:
            return self.to_reissue.pop(0)
        remaining = [name for name in sorted(self.problem_ids) if not self.is_exhausted(name)]
        if not remaining:
            return None
        num = {name: sum(issued.problem_id in self.problem_ids[name] for issued in self.issued) for name in remaining}
        name = min(remaining, key=lambda name: (num[name] + 0.5) / self.weights.get(name, 1.0))
        epochs = [issued.epoch for issued in self.issued if issued.problem_id in self.problem_ids[name]]
        for epoch in (max(epochs, default=0), max(epochs, default=0) + 1):
            order = sorted(self.problem_ids[name])
            random.Random(derive_seed("epoch order", self.seeds[name], epoch)).shuffle(order)
            asked = {issued.problem_id for issued in self.issued if issued.epoch == epoch}
            left = [problem_id for problem_id in order if problem_id not in asked and not self.is_solved(problem_id)]
            busy = {issued.problem_id for issued in self.in_flight}
            for problem_id in left:
                if problem_id not in busy:
                    self.issued.append(Issued(problem_id=problem_id, epoch=epoch))
                    return self.issued[-1]
            if left:
                return None
        return None


operations = st.lists(
    st.tuples(st.sampled_from(["next", "next", "grade", "grade", "train", "save", "kill"]), st.integers(0, 2**16)),
    max_size=60,
)
weightings = st.dictionaries(st.sampled_from("abcde"), st.floats(0.05, 20), min_size=1, max_size=3)


@settings(max_examples=100, deadline=None)
@given(operations, st.none() | weightings, st.integers(0, 3), st.sampled_from(sorted(RULES)), st.data())
def test_agrees_with_a_reference_through_kills_and_resumes(steps, weights, seed, rule, data):
    """One task or several; problems and tasks come in any order."""
    by_task = ids(**{name: data.draw(st.integers(1, 5)) for name in reversed(list(weights or {"": 1}))})
    problem_ids = by_task if weights else by_task[""][::-1]
    curriculum = Curriculum(problem_ids, seed=seed, left_out=RULES[rule], weights=weights)
    reference = Reference(by_task, weights or {}, seed, rule)
    saved = json.dumps(curriculum.state_dict()), copy.deepcopy(reference)
    for step, number in steps:
        if step == "next":
            assert curriculum.next() == reference.next()
        elif step == "grade":
            ready = [issued for issued in reference.in_flight if issued not in reference.to_reissue]
            if ready:
                issued, num_graded = ready[number % len(ready)], (number >> 3) % 5
                num_correct = min((number >> 6) % 6, num_graded)
                curriculum.graded(issued.key, num_correct=num_correct, num_graded=num_graded, num_asked=num_graded)
                reference.grades.append((issued, num_correct, num_graded))
        elif step == "train" and reference.untrained:
            issued = reference.untrained[number % len(reference.untrained)]
            curriculum.trained(issued.key)
            reference.trained.append(issued.key)
        elif step == "save":
            saved = json.dumps(curriculum.state_dict()), copy.deepcopy(reference)
        elif step == "kill":
            curriculum = Curriculum.restore(json.loads(saved[0]), problem_ids, left_out=RULES[rule], weights=weights)
            reference = copy.deepcopy(saved[1])
            reference.to_reissue = list(reference.in_flight)
            assert json.loads(saved[0]) == json.loads(json.dumps(curriculum.state_dict()))
        assert list(curriculum.in_flight) == reference.in_flight
        assert list(curriculum.untrained) == reference.untrained
        assert curriculum.exhausted == all(map(reference.is_exhausted, by_task))
        fracs = {name: sum(map(reference.is_solved, listed)) / len(listed) for name, listed in by_task.items()}
        columns = {f"curriculum/solved_frac/{name}": frac for name, frac in fracs.items() if name}
        assert curriculum.metrics == {"curriculum/solved_frac": max(fracs.values()), **columns}


@settings(max_examples=20, deadline=None)
@given(weightings, st.integers(1, 12), st.randoms(use_true_random=False), st.data())
def test_every_task_keeps_its_share_at_any_time(weights, most_in_flight, noise, data):
    sizes = {name: data.draw(st.integers(1, 30)) for name in weights}
    curriculum = Curriculum(ids(**sizes), weights=weights, seed=0, left_out=uniform)
    flying, history = [], []
    while len(history) < 400:
        issued = curriculum.next() if len(flying) < most_in_flight else None
        if issued is not None:
            history.append(issued)
            flying.append(issued)
        else:
            assert flying, "nothing to wait for"
            solve(curriculum, flying.pop(noise.randrange(len(flying))), 0)
    for name, weight in weights.items():
        nums = list(itertools.accumulate((task_of(issued) == name for issued in history), initial=0))
        for start in range(200):
            # Off by less than one problem for each other task at either end of the stretch.
            off = nums[start + 200] - nums[start] - 200 * weight / sum(weights.values())
            assert abs(off) <= 2 * len(weights)


@pytest.mark.parametrize("rule", ["latest", "cumulative"])
def test_a_group_with_few_verdicts_solves_nothing(rule):
    curriculum = make(1, left_out=RULES[rule])
    for num_graded in (1, 7):
        curriculum.graded(take(curriculum).key, num_correct=num_graded, num_graded=num_graded, num_asked=16)
        assert not curriculum.exhausted
    # Half of them is enough.
    curriculum.graded(take(curriculum).key, num_correct=8, num_graded=8, num_asked=16)
    assert curriculum.exhausted
    # Who does not say how many were asked for has every verdict counted.
    curriculum = make(1, left_out=RULES[rule])
    solve(curriculum, take(curriculum), 1, 1)
    assert curriculum.exhausted


def test_bookkeeping_mistakes_are_errors():
    curriculum = make(2)
    issued = take(curriculum)
    with pytest.raises(ValueError, match="never graded"):
        curriculum.trained(issued.key)
    with pytest.raises(ValueError, match="cannot be"):
        curriculum.graded(issued.key, num_correct=3, num_graded=2, num_asked=2)
    with pytest.raises(ValueError, match="2 correct of 3 graded of 2 asked cannot be"):
        curriculum.graded(issued.key, num_correct=2, num_graded=3, num_asked=2)
    again = Curriculum.restore(curriculum.state_dict(), ["p0", "p1"], left_out=LATEST)
    with pytest.raises(ValueError, match="not in flight"):
        solve(again, issued, 1)
    solve(curriculum, issued, 0)
    with pytest.raises(ValueError, match="already graded"):
        solve(curriculum, issued, 0)
    curriculum.trained(issued.key)
    with pytest.raises(ValueError, match="already trained"):
        curriculum.trained(issued.key)


def test_bad_problem_sets_are_errors():
    with pytest.raises(ValueError, match="at least one"):
        Curriculum([], seed=0, left_out=uniform)
    state = Curriculum(ids(a=2, b=2), weights={"a": 1, "b": 1}, seed=0, left_out=uniform).state_dict()
    with pytest.raises(ValueError, match="made with the tasks a, b, not a, c; resume with the same"):
        Curriculum.restore(state, ids(a=2, c=2), weights={"a": 1, "c": 1}, left_out=uniform)
    with pytest.raises(ValueError, match="other problems"):
        Curriculum.restore(state, ids(a=2, b=3), weights={"a": 1, "b": 1}, left_out=uniform)


POOLS: LeftOut = functools.partial(pools, easy=0.8, hard=0.2, easy_frac=0.25, hard_frac=0.5, history="latest")


@pytest.mark.parametrize(("num_correct", "expected"), [(0, 0.5), (2, 0.5), (3, 0.0), (7, 0.0), (8, 0.75), (10, 0.75)])
def test_pools_by_pass_rate(num_correct, expected):
    assert POOLS(PassRecord(latest_correct=num_correct, latest_graded=10)) == expected
    assert POOLS(PassRecord()) == 0.0


def test_pools_are_asked_at_their_own_rates():
    """Problems 0 to 99 are easy, 100 to 199 hard, the others neither: 40 epochs after the first."""
    rates = {f"p{number}": 9 if number < 100 else 1 if number < 200 else 5 for number in range(300)}
    curriculum, asked = make(300, left_out=POOLS), dict.fromkeys(rates, 0)
    while (issued := take(curriculum)).epoch <= 40:
        asked[issued.problem_id] += issued.epoch > 0
        solve(curriculum, issued, rates[issued.problem_id])
    shares = [sum(asked[f"p{number}"] for number in range(start, start + 100)) / 4000 for start in (0, 100, 200)]
    assert shares == pytest.approx([0.25, 0.5, 1.0], abs=0.03)
    assert curriculum.metrics == {"curriculum/solved_frac": 0.0}


def test_pools_go_on_where_a_run_is_resumed():
    curriculum = make(20, left_out=POOLS)
    for place in range(65):
        issued = take(curriculum)
        solve(curriculum, issued, 9 if place % 3 else 1)
        curriculum.trained(issued.key)
    again = Curriculum.restore(
        json.loads(json.dumps(curriculum.state_dict())), [f"p{number}" for number in range(20)], left_out=POOLS
    )
    for _ in range(50):
        first, second = take(curriculum), take(again)
        assert first == second
        for each in (curriculum, again):
            solve(each, first, 9)


def test_an_epoch_that_asks_nothing_is_passed_over():
    curriculum = make(1, left_out=lambda record: 0.9 if record.total_graded else 0.0)
    for _ in range(5):
        solve(curriculum, take(curriculum), 1)
    assert take(curriculum).epoch > 5
