import copy
import functools
import json
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.tasks.curriculum import Curriculum, Issued, PassRecord, Retires, no_positive_resampling, uniform
from scalerl.types import derive_seed

LATEST: Retires = functools.partial(no_positive_resampling, threshold=0.9, history="latest")
CUMULATIVE: Retires = functools.partial(no_positive_resampling, threshold=0.9, history="cumulative")
RULES = {"latest": LATEST, "cumulative": CUMULATIVE, "uniform": uniform}


def make(num_problems=3, *, seed=0, retires: Retires = LATEST):
    return Curriculum([f"p{number}" for number in range(num_problems)], seed=seed, retires=retires)


def take(curriculum: Curriculum) -> Issued:
    issued = curriculum.next()
    assert issued is not None
    return issued


def solve(curriculum: Curriculum, issued: Issued, num_correct: int, num_graded: int = 10) -> None:
    curriculum.graded(issued.key, num_correct=num_correct, num_graded=num_graded)


def resumed(curriculum: Curriculum, num_problems=3, retires: Retires = LATEST) -> Curriculum:
    state = json.loads(json.dumps(curriculum.state_dict()))
    return Curriculum.restore(state, [f"p{number}" for number in range(num_problems)], retires=retires)


class Reference:
    """The same rules, worked out from the whole history at every call."""

    def __init__(self, problem_ids, seed, rule):
        self.problem_ids, self.seed, self.rule = sorted(problem_ids), seed, rule
        self.issued: list[Issued] = []
        self.grades: list[tuple[Issued, int, int]] = []
        self.trained: list[str] = []
        self.to_reissue: list[Issued] = []

    def is_retired(self, problem_id):
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

    @property
    def in_flight(self):
        graded = {issued.key for issued, _, _ in self.grades}
        return [issued for issued in self.issued if issued.key not in graded]

    @property
    def untrained(self):
        return [issued for issued, _, _ in self.grades if issued.key not in self.trained]

    def next(self):
        if self.to_reissue:
            return self.to_reissue.pop(0)
        epoch = max((issued.epoch for issued in self.issued), default=0)
        for candidate_epoch in (epoch, epoch + 1):
            order = list(self.problem_ids)
            random.Random(derive_seed("epoch order", self.seed, candidate_epoch)).shuffle(order)
            asked = {issued.problem_id for issued in self.issued if issued.epoch == candidate_epoch}
            left = [problem_id for problem_id in order if problem_id not in asked and not self.is_retired(problem_id)]
            busy = {issued.problem_id for issued in self.in_flight}
            for problem_id in left:
                if problem_id not in busy:
                    self.issued.append(Issued(problem_id=problem_id, epoch=candidate_epoch))
                    return self.issued[-1]
            if left:
                return None
        return None


operations = st.lists(
    st.tuples(st.sampled_from(["next", "next", "grade", "grade", "train", "save", "kill"]), st.integers(0, 2**16)),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(operations, st.integers(1, 5), st.integers(0, 3), st.sampled_from(sorted(RULES)))
def test_agrees_with_a_reference_through_kills_and_resumes(steps, num_problems, seed, rule):
    problem_ids = [f"p{number}" for number in range(num_problems)]
    curriculum, reference = Curriculum(problem_ids, seed=seed, retires=RULES[rule]), Reference(problem_ids, seed, rule)
    saved = json.dumps(curriculum.state_dict()), copy.deepcopy(reference)
    for step, number in steps:
        if step == "next":
            assert curriculum.next() == reference.next()
        elif step == "grade":
            ready = [issued for issued in reference.in_flight if issued not in reference.to_reissue]
            if ready:
                issued, num_graded = ready[number % len(ready)], (number >> 3) % 5
                num_correct = min((number >> 6) % 6, num_graded)
                curriculum.graded(issued.key, num_correct=num_correct, num_graded=num_graded)
                reference.grades.append((issued, num_correct, num_graded))
        elif step == "train" and reference.untrained:
            issued = reference.untrained[number % len(reference.untrained)]
            curriculum.trained(issued.key)
            reference.trained.append(issued.key)
        elif step == "save":
            saved = json.dumps(curriculum.state_dict()), copy.deepcopy(reference)
        elif step == "kill":
            curriculum = Curriculum.restore(json.loads(saved[0]), problem_ids, retires=RULES[rule])
            reference = copy.deepcopy(saved[1])
            reference.to_reissue = list(reference.in_flight)
        assert list(curriculum.in_flight) == reference.in_flight
        assert list(curriculum.untrained) == reference.untrained
        assert len(reference.trained) == len(set(reference.trained))
        assert curriculum.exhausted == all(map(reference.is_retired, problem_ids))


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 12), st.integers(1, 6), st.randoms(use_true_random=False), st.sampled_from(sorted(RULES)))
def test_every_epoch_holds_each_remaining_problem_exactly_once(num_problems, max_in_flight, noise, rule):
    """With several in flight across epoch boundaries, graded in random order and killed at random moments."""
    problem_ids = [f"p{number}" for number in range(num_problems)]
    curriculum = Curriculum(problem_ids, seed=1, retires=RULES[rule])
    flying: list[Issued] = []
    trained: Counter[str] = Counter()
    rates: dict[str, list[int]] = {problem_id: [] for problem_id in problem_ids}
    retired_in: dict[str, int] = {}
    while curriculum._tasks[""].epoch < 4 and not curriculum.exhausted:
        issued = curriculum.next() if len(flying) < max_in_flight else None
        if issued is not None:
            assert issued.problem_id not in {other.problem_id for other in flying}
            flying.append(issued)
            continue
        assert flying, "nothing to wait for, yet not exhausted"
        done = flying.pop(noise.randrange(len(flying)))
        num_correct = noise.choice([0, 5, 9, 10])
        solve(curriculum, done, num_correct)
        rates[done.problem_id].append(num_correct)
        counted = rates[done.problem_id][-1:] if rule == "latest" else rates[done.problem_id]
        if rule != "uniform" and sum(counted) >= 9 * len(counted):
            retired_in[done.problem_id] = done.epoch
        curriculum.trained(done.key)
        trained[done.key] += 1
        if noise.random() < 0.2:
            curriculum, flying = resumed(curriculum, num_problems, RULES[rule]), []
    assert set(trained.values()) <= {1}
    open_keys = {issued.key for issued in curriculum.in_flight}
    for epoch in range(curriculum._tasks[""].epoch):
        expected = {problem_id for problem_id in problem_ids if retired_in.get(problem_id, epoch) >= epoch}
        got = {key.partition("/")[2] for key in {*trained, *open_keys} if key.startswith(f"{epoch}/")}
        assert got == expected


def test_a_solved_problem_does_not_return():
    curriculum = make(2)
    first, second = take(curriculum), take(curriculum)
    solve(curriculum, first, 9)
    solve(curriculum, second, 8)
    assert take(curriculum) == Issued(problem_id=second.problem_id, epoch=1)
    assert len(curriculum._tasks[""].retired) == 1
    assert curriculum.metrics == {"curriculum/retired_frac": 0.5}


def test_epoch_begins_with_earlier_problems_in_flight():
    curriculum = make(3)
    first, second, third = take(curriculum), take(curriculum), take(curriculum)
    assert curriculum.next() is None
    assert not curriculum.exhausted
    solve(curriculum, second, 0)
    assert take(curriculum) == Issued(problem_id=second.problem_id, epoch=1)
    assert curriculum.next() is None
    solve(curriculum, first, 10)
    assert curriculum.next() is None
    solve(curriculum, third, 0)
    assert take(curriculum) == Issued(problem_id=third.problem_id, epoch=1)


def test_waiting_and_exhausted_are_different_answers():
    curriculum = make(1)
    issued = take(curriculum)
    assert curriculum.next() is None
    assert not curriculum.exhausted
    solve(curriculum, issued, 10)
    assert curriculum.next() is None
    assert curriculum.exhausted
    assert curriculum.untrained == (issued,)


def test_uniform_sampling_is_never_exhausted():
    curriculum = make(1, retires=uniform)
    for epoch in range(5):
        issued = take(curriculum)
        assert issued.epoch == epoch
        solve(curriculum, issued, 10)
    assert not curriculum.exhausted


def test_history_is_the_latest_group_or_all_of_them():
    record = PassRecord().with_group(0, 10).with_group(10, 10)
    assert LATEST(record)
    assert not CUMULATIVE(record)
    assert CUMULATIVE(PassRecord().with_group(8, 10).with_group(10, 10))
    assert not LATEST(PassRecord())


def test_a_group_without_verdicts_changes_no_record():
    record = PassRecord().with_group(9, 10)
    assert record.with_group(0, 0) == record
    curriculum = make(1)
    solve(curriculum, take(curriculum), 0, 0)
    assert take(curriculum).epoch == 1


@pytest.mark.parametrize("rule", ["latest", "cumulative"])
def test_a_group_with_few_verdicts_retires_nothing(rule):
    curriculum = make(1, retires=RULES[rule])
    for num_graded in (1, 7):
        curriculum.graded(take(curriculum).key, num_correct=num_graded, num_graded=num_graded, num_asked=16)
        assert len(curriculum._tasks[""].retired) == 0
    assert resumed(curriculum, 1, RULES[rule]).state_dict() == curriculum.state_dict()
    # Half of them is enough.
    curriculum.graded(take(curriculum).key, num_correct=8, num_graded=8, num_asked=16)
    assert len(curriculum._tasks[""].retired) == 1
    # Who does not say how many were asked for has every verdict counted.
    curriculum = make(1, retires=RULES[rule])
    solve(curriculum, take(curriculum), 1, 1)
    assert len(curriculum._tasks[""].retired) == 1


def test_order_depends_on_seed_and_epoch_only():
    def order(ids, seed):
        curriculum = Curriculum(ids, seed=seed, retires=uniform)
        epochs: list[list[str]] = [[], []]
        for epoch in epochs:
            for _ in ids:
                issued = take(curriculum)
                epoch.append(issued.problem_id)
                solve(curriculum, issued, 0)
        return epochs

    ids = [f"p{number}" for number in range(20)]
    assert order(ids, 0) == order(ids[::-1], 0)
    assert order(ids, 0) != order(ids, 1)
    first, second = order(ids, 0)
    assert first != second
    assert sorted(first) == sorted(second) == sorted(ids)


def test_resume_issues_groups_in_flight_first_by_key():
    curriculum = make(5)
    issued = [take(curriculum) for _ in range(3)]
    solve(curriculum, issued[1], 0)
    again = resumed(curriculum, 5)
    with pytest.raises(ValueError, match="not in flight"):
        again.graded(issued[0].key, num_correct=1, num_graded=1)
    assert [take(again), take(again)] == [issued[0], issued[2]]
    assert again.untrained == (issued[1],)
    assert take(again) == take(curriculum)
    assert again.state_dict() == curriculum.state_dict()


def test_a_resume_of_a_resume_loses_nothing():
    curriculum = make(4)
    issued = [take(curriculum) for _ in range(3)]
    once = resumed(curriculum, 4)
    assert take(once) == issued[0]
    twice = resumed(once, 4)
    assert [take(twice) for _ in range(3)] == issued


def test_bookkeeping_mistakes_are_errors():
    curriculum = make(2)
    issued = take(curriculum)
    with pytest.raises(ValueError, match="never graded"):
        curriculum.trained(issued.key)
    with pytest.raises(ValueError, match="cannot be"):
        curriculum.graded(issued.key, num_correct=3, num_graded=2)
    with pytest.raises(ValueError, match="2 correct of 3 graded of 2 asked cannot be"):
        curriculum.graded(issued.key, num_correct=2, num_graded=3, num_asked=2)
    solve(curriculum, issued, 0)
    with pytest.raises(ValueError, match="already graded"):
        solve(curriculum, issued, 0)
    curriculum.trained(issued.key)
    with pytest.raises(ValueError, match="already trained"):
        curriculum.trained(issued.key)


def test_bad_problem_sets_are_errors():
    with pytest.raises(ValueError, match="at least one"):
        Curriculum([], seed=0, retires=uniform)
    with pytest.raises(ValueError, match="'a'"):
        Curriculum(["a", "b", "a"], seed=0, retires=uniform)
    with pytest.raises(ValueError, match="other problems"):
        Curriculum.restore(make(2).state_dict(), ["p0", "p1", "p2"], retires=LATEST)
