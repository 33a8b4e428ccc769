import json
import sys
from pathlib import Path
from typing import Any

import pytest
from graded import grade_all

from scalerl.errors import TaskError
from scalerl.training.graders.gym import gym as grade
from scalerl.training.graders.gym import plainly
from scalerl.training.graders.pool import GraderPool, GraderSpec
from scalerl.training.graders.sandbox.values import decode
from scalerl.training.tasks.gym import gym
from scalerl.training.tasks.task import Task


@pytest.fixture(scope="module")
def sums() -> Task:
    return gym(10, 0, dataset="chain_sum", num_problems=40, min_terms=2, max_terms=3, max_digits=2)


def own_answer(reference: str) -> str:
    return decode(json.loads(reference), {}.__getitem__)["entry"]["answer"]


def test_a_data_set_of_reasoning_gym_is_a_task(sums: Task):
    assert (len(sums.training), len(sums.evaluation)) == (40, 10)
    assert not {p.content_hash for p in sums.training} & {p.content_hash for p in sums.evaluation}
    assert sums.grader == "gym"
    assert all(2 <= problem.prompt.count("+") + problem.prompt.count(" - ") + 1 <= 3 for problem in sums.training)
    again = gym(10, 0, dataset="chain_sum", num_problems=40, min_terms=2, max_terms=3, max_digits=2)
    assert (again.training, again.evaluation) == (sums.training, sums.evaluation)
    other = gym(10, 1, dataset="chain_sum", num_problems=40, min_terms=2, max_terms=3, max_digits=2)
    assert other.evaluation != sums.evaluation


def test_answers_are_scored_by_the_data_set_itself(sums: Task):
    for problem in sums.training:
        right = own_answer(problem.answer)
        assert grade(f"<think>let me see</think>{right}", problem.answer) is True
        assert grade(f"<think></think>so <answer> {right} </answer>.", problem.answer) is True
        assert grade(f"<think></think>{int(right) + 1}", problem.answer) is False
        assert grade(f"<think>{right}", problem.answer) is False


def test_several_answers_may_be_right_and_a_threshold_decides():
    (problem,) = gym(1, 0, dataset="countdown", num_problems=1, min_numbers=3, max_numbers=3, threshold=0.05).training
    assert grade(own_answer(problem.answer), problem.answer) is True
    # reasoning-gym gives a little for an expression of the right numbers.
    assert grade("1+1", problem.answer) is True
    strict = problem.answer.replace('["threshold", 0.05]', '["threshold", 1.0]')
    assert strict != problem.answer
    assert grade("1+1", strict) is False
    assert grade(own_answer(problem.answer), strict) is True


ATTACKS = (
    "open('made', 'w')",
    "open ('made', 'w')",
    "(open)('made', 'w')",
    "[open][0]('made', 'w')",
    "[*map(open, ['made'], ['w'])]",
    "__import__('os').mkdir('made')",
    "sqrt(\"open('made', 'w')\")",
    "f'{open(chr(97), chr(119))}'",
    "().__class__.__base__.__subclasses__()",
)


@pytest.mark.parametrize("dataset", ["countdown", "polynomial_multiplication", "string_insertion", "n_queens"])
def test_answers_are_not_run(dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Their scorers pass answers to eval, or to sympy's parse_expr, which does the same."""
    (problem,) = gym(1, 0, dataset=dataset, num_problems=1).training
    monkeypatch.chdir(tmp_path)
    assert grade(own_answer(problem.answer), problem.answer) is True
    assert [grade(attack, problem.answer) for attack in ATTACKS] == [False] * len(ATTACKS)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2*(3 - 4)**2 + sin(0) + Rational(1, 2) - .5", 2),
        ("[['A', 'B'], [1, 0x1f]]", [["A", "B"], [1, 31]]),
        *((attack, None) for attack in ATTACKS),
        *((text, None) for text in ("1 .real", "1.0.real", "{}.get", "x\n(1)", "print('a')", "a\\\n(1)")),
    ],
)
def test_plain_expressions_are_evaluated(text: str, value: Any):
    names = {"sin": lambda x: x, "Rational": lambda a, b: a / b, "open": lambda *_: 1, "x": int, "print": repr}
    if value is not None:
        assert plainly(eval)(text, names) == value
        return
    with pytest.raises(ValueError, match="plain"):
        plainly(eval)(text, names)


def test_answer_that_takes_too_long_is_wrong():
    """Its scorer passes the answer to sympy's parse_expr."""
    (problem,) = gym(1, 0, dataset="countdown", num_problems=1, min_numbers=3, max_numbers=3).training
    hanging = ["9**9**9**9", "factorial(10**9)", "2**(10**10)"]
    pairs = [(answer, problem.answer) for answer in (*hanging, own_answer(problem.answer))]
    with GraderPool(timeout_s=60) as pool:
        results = grade_all(pool, GraderSpec(name="gym"), pairs)
    assert [result.value for result in results] == [0.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("dataset", "answers"),
    [
        ("number_sorting", ["[" + ", ".join(["NaN"] * num) + "]" for num in range(1, 20)]),
        ("complex_arithmetic", ["nan", "n an", "nan + nani", "1 + NaNi"]),
    ],
)
def test_answer_that_is_no_number_is_wrong(dataset: str, answers: list[str]):
    """Their scorers ask whether it is far from the right one, which no number is."""
    (problem,) = gym(1, 0, dataset=dataset, num_problems=1).training
    assert not any(grade(answer, problem.answer) for answer in answers)
    assert grade(own_answer(problem.answer), problem.answer) is True


def test_workers_begin_with_the_packages_of_scorers():
    # Otherwise the first answer of each worker takes seconds of its limit for them.
    (problem,) = gym(1, 0, dataset="chain_sum", num_problems=1).training
    answer = own_answer(problem.answer)
    with GraderPool(num_workers=2, cpu_limit_s=0.5) as pool:
        results = grade_all(pool, GraderSpec(name="gym"), [(answer, problem.answer)] * 4)
    assert [result.value for result in results] == [1.0] * 4


def test_an_entry_is_carried_whole():
    # Its scorer compares tuples, which plain JSON would turn into lists.
    (problem,) = gym(1, 0, dataset="rearc", num_problems=1).training
    assert grade(own_answer(problem.answer), problem.answer) is True


def test_answer_that_its_scorer_cannot_read_is_wrong(sums: Task, monkeypatch: pytest.MonkeyPatch):
    def choke(self: object, answer: str, entry: object) -> float:
        raise ZeroDivisionError

    monkeypatch.setattr("reasoning_gym.dataset.ProceduralDataset.score_answer", choke)
    assert grade("1/0", sums.training[0].answer) is False


@pytest.mark.parametrize("answer", ["", "72", "{}", '["dict", [["dataset", "chain_sum"]]]'])
def test_a_reference_that_cannot_be_read_gives_no_verdict(answer: str):
    assert grade("1", answer) is None


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"dataset": "chainsum"}, r'reasoning-gym has no data set "chainsum"; did you mean "chain_sum"\?'),
        ({"min_term": 2}, '"chain_sum" rejects these settings: .*min_term'),
        ({"min_terms": 5, "max_terms": 2}, '"chain_sum" rejects these settings: max_terms must be >= min_terms'),
        ({"threshold": 1.5}, r"threshold is 1\.5"),
        (
            {"max_terms": 2, "max_digits": 1},
            r"1000 different problems for training are needed, but these settings give about 190",
        ),
    ],
)
def test_mistakes_are_sentences(settings: dict[str, Any], sentence: str):
    with pytest.raises(TaskError, match=sentence):
        gym(10, 0, **{"dataset": "chain_sum", **settings})


def test_missing_reasoning_gym_is_one_sentence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    with pytest.raises(TaskError, match=r'reasoning-gym is not installed: pip install "scalerl\[gym\]"'):
        gym(1, 0, dataset="chain_sum")
