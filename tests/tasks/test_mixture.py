import functools
import json
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.tasks.curriculum import Curriculum, Issued, Retires, no_positive_resampling, uniform

SOLVED: Retires = functools.partial(no_positive_resampling, threshold=0.9, history="latest")


def ids(**sizes: int) -> dict[str, list[str]]:
    return {name: [f"{name}/{number}" for number in range(size)] for name, size in sizes.items()}


def make(weights: Mapping[str, float], sizes: Mapping[str, int], *, seed=0, retires: Retires = uniform) -> Curriculum:
    return Curriculum(ids(**sizes), weights=weights, seed=seed, retires=retires)


def resumed(
    mixture: Curriculum, weights: Mapping[str, float], sizes: Mapping[str, int], retires: Retires
) -> Curriculum:
    state = json.loads(json.dumps(mixture.state_dict()))
    return Curriculum.restore(state, ids(**sizes), weights=weights, retires=retires)


def take(mixture: Curriculum) -> Issued:
    issued = mixture.next()
    assert issued is not None
    return issued


def task_of(issued: Issued) -> str:
    return issued.problem_id.partition("/")[0]


def finish(mixture: Curriculum, issued: Issued, num_correct: int = 0) -> None:
    mixture.graded(issued.key, num_correct=num_correct, num_graded=10)
    mixture.trained(issued.key)


def played(mixture: Curriculum, noise: random.Random, *, num: int, most_in_flight: int) -> list[Issued]:
    """What is issued by a loop that grades in random order."""
    flying: list[Issued] = list(mixture.in_flight)
    history: list[Issued] = []
    while len(history) < num:
        issued = mixture.next() if len(flying) < most_in_flight else None
        if issued is not None:
            history.append(issued)
            flying.append(issued)
        else:
            assert flying, "nothing to wait for"
            finish(mixture, flying.pop(noise.randrange(len(flying))))
    return history


def windows(history: list[Issued], name: str, length: int = 400) -> list[int]:
    there = [task_of(issued) == name for issued in history]
    return [sum(there[start : start + length]) for start in range(len(there) - length + 1)]


@pytest.mark.parametrize(
    "sizes",
    [
        {"math": 5000, "code": 5000},
        # Three in flight of a task with two problems: it waits for verdicts all the time.
        {"math": 2, "code": 300},
        {"math": 300, "code": 2},
        {"math": 1, "code": 1},
    ],
)
def test_three_to_one_holds_within_a_percent_over_any_400(sizes: dict[str, int]):
    mixture = make({"math": 3, "code": 1}, sizes)
    history = played(mixture, random.Random(1), num=1500, most_in_flight=40)
    assert all(abs(number - 300) <= 4 for number in windows(history, "math"))
    assert mixture.state_dict()["num_issued"] == Counter(map(task_of, history))


weightings = st.dictionaries(st.sampled_from("abcde"), st.floats(0.05, 20), min_size=1, max_size=5)


@settings(max_examples=40, deadline=None)
@given(weightings, st.integers(1, 12), st.randoms(use_true_random=False), st.data())
def test_every_task_keeps_its_share_at_any_time(weights, most_in_flight, noise, data):
    sizes = {name: data.draw(st.integers(1, 30)) for name in weights}
    history = played(make(weights, sizes), noise, num=400, most_in_flight=most_in_flight)
    for name, weight in weights.items():
        for number in windows(history, name, 200):
            # Off by less than one problem for each other task at either end of the stretch.
            assert abs(number - 200 * weight / sum(weights.values())) <= 2 * len(weights)


def test_each_task_follows_its_own_curriculum():
    mixture = make({"math": 2, "code": 1}, {"math": 20, "code": 10}, seed=3)
    history = played(mixture, random.Random(0), num=60, most_in_flight=1)
    for name, size in (("math", 20), ("code", 10)):
        asked = [issued for issued in history if task_of(issued) == name]
        assert [issued.epoch for issued in asked] == [0] * size + [1] * size
        assert len({issued.problem_id for issued in asked[:size]}) == size


def test_a_task_that_waits_is_waited_for():
    mixture = make({"math": 1, "code": 1}, {"math": 1, "code": 10})
    asked = [take(mixture), take(mixture)]
    while (issued := mixture.next()) is not None:
        asked.append(issued)
    assert Counter(map(task_of, asked)) == {"math": 1, "code": 2}
    assert not mixture.exhausted
    (math,) = [issued for issued in asked if task_of(issued) == "math"]
    finish(mixture, math)
    assert task_of(take(mixture)) == "math"


def exhausted_tasks(mixture: Curriculum) -> set[str]:
    return {key.rpartition("/")[2] for key, share in mixture.metrics.items() if share == 1 and key.count("/") == 2}


def test_when_one_task_is_exhausted_the_others_go_on():
    weights, sizes = {"a": 1, "b": 2, "c": 1}, {"a": 3, "b": 500, "c": 500}
    mixture = make(weights, sizes, retires=SOLVED)
    history: list[Issued] = []
    while Counter(map(task_of, history))["a"] < 3:
        assert not exhausted_tasks(mixture)
        history.append(take(mixture))
        finish(mixture, history[-1], num_correct=10 if task_of(history[-1]) == "a" else 0)
    assert exhausted_tasks(mixture) == {"a"}
    history += played(mixture, random.Random(0), num=300, most_in_flight=5)
    assert exhausted_tasks(mixture) == {"a"}
    assert not mixture.exhausted
    counts = Counter(map(task_of, history))
    assert counts["a"] == 3
    assert abs(counts["b"] - 2 * counts["c"]) <= 2
    by_task = {f"curriculum/retired_frac/{name}": float(name == "a") for name in "abc"}
    assert mixture.metrics == {"curriculum/retired_frac": 1.0, **by_task}


def test_a_run_ends_when_every_task_is_exhausted():
    mixture = make({"a": 1, "b": 5}, {"a": 2, "b": 3}, retires=SOLVED)
    num_asked = 0
    while (issued := mixture.next()) is not None:
        finish(mixture, issued, num_correct=10)
        num_asked += 1
    assert mixture.exhausted
    assert num_asked == 5


operations = st.lists(
    st.tuples(st.sampled_from(["next", "next", "grade", "train"]), st.integers(0, 2**16)), max_size=80
)


@settings(max_examples=100, deadline=None)
@given(operations, st.integers(0, 80), weightings, st.data())
def test_restore_at_any_point_continues_identically(steps, saved_at, weights, data):
    """Two mixtures side by side, one of them restored; both then get the same grades and steps."""
    sizes = {name: data.draw(st.integers(1, 4)) for name in weights}
    original = make(weights, sizes, retires=SOLVED)
    for step in steps[:saved_at]:
        act(original, *step)
    other = resumed(original, weights, sizes, SOLVED)
    assert [take(other) for _ in original.in_flight] == list(original.in_flight)
    assert other.state_dict() == original.state_dict()
    for step in steps[saved_at:]:
        assert act(original, *step) == act(other, *step)
        assert other.state_dict() == original.state_dict()
    again = resumed(resumed(original, weights, sizes, SOLVED), weights, sizes, SOLVED)
    assert [take(again) for _ in original.in_flight] == list(original.in_flight)


def act(mixture: Curriculum, step: str, number: int) -> Any:
    if step == "next":
        issued = mixture.next()
        assert issued is not None or mixture.exhausted or mixture.in_flight, "waits for nothing"
        return issued
    if step == "grade" and mixture.in_flight:
        issued = mixture.in_flight[number % len(mixture.in_flight)]
        mixture.graded(issued.key, num_correct=(number >> 4) % 11, num_graded=10, num_asked=10)
    elif step == "train" and mixture.untrained:
        mixture.trained(mixture.untrained[number % len(mixture.untrained)].key)
    return None


def test_the_order_of_the_tasks_in_a_file_does_not_matter():
    weights, sizes = {"a": 1.0, "b": 1.0, "c": 2.0}, {"a": 9, "b": 9, "c": 9}
    backwards = make(dict(reversed(weights.items())), dict(reversed(sizes.items())))
    history = played(make(weights, sizes), random.Random(0), num=50, most_in_flight=5)
    assert history == played(backwards, random.Random(0), num=50, most_in_flight=5)


def test_bookkeeping_mistakes_are_errors():
    with pytest.raises(ValueError, match="a weight above 0 for each"):
        make({"a": 1}, {"a": 1, "b": 1})
    with pytest.raises(ValueError, match="a weight above 0 for each"):
        make({"a": 0}, {"a": 1})
    with pytest.raises(ValueError, match="a weight above 0 for each"):
        make({}, {})
    mixture = make({"a": 1, "b": 1}, {"a": 2, "b": 2})
    with pytest.raises(ValueError, match="never graded"):
        mixture.trained("0/a/0")
    issued = take(mixture)
    with pytest.raises(ValueError, match="never graded"):
        mixture.trained(issued.key)
    finish(mixture, issued)
    with pytest.raises(ValueError, match="already trained"):
        mixture.trained(issued.key)
    with pytest.raises(ValueError, match="made with the tasks a, b, not a, c; resume with the same"):
        Curriculum.restore(mixture.state_dict(), ids(a=2, c=2), weights={"a": 1, "c": 1}, retires=uniform)
    with pytest.raises(ValueError, match="other problems"):
        Curriculum.restore(mixture.state_dict(), ids(a=2, b=3), weights={"a": 1, "b": 1}, retires=uniform)
