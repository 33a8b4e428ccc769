import json
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalerl.training.graders.expressions import evaluate, last_expression
from scalerl.training.graders.rules import countdown as grade
from scalerl.training.tasks.countdown import countdown
from scalerl.training.tasks.task import Task


@pytest.fixture(scope="module")
def task() -> Task:
    return countdown(100, 0, num_problems=400, max_numbers=5)


def test_demonstration_steps_are_true_and_reach_the_target(task: Task):
    assert task.demonstrations is not None
    made = task.demonstrations(500, 1)
    signs = {sign: sum(sign in item.completion.partition("</think>")[2] for item in made) for sign in "+-*/("}
    assert min(signs.values()) > 20
    for item in made:
        steps = item.completion.removeprefix("<think>").partition("</think>")[0].split(";")
        for step in steps:
            left, _, right = step.partition("=")
            assert evaluate(left)[0] == int(right)
        assert steps[-1].endswith(f"={json.loads(item.problem.answer)['target']}")


def test_difficulty_is_what_was_asked_for(task: Task):
    for problem in (*task.training, *task.evaluation):
        wanted = json.loads(problem.answer)
        assert 3 <= len(wanted["numbers"]) <= 5
        assert all(1 <= number <= 25 for number in wanted["numbers"])
        assert 1 <= wanted["target"] <= 100
        assert wanted["target"] not in wanted["numbers"]
        assert str(wanted["target"]) in problem.prompt


ANSWER = json.dumps({"target": 64, "numbers": [2, 7, 25, 5]})


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("(25+7)*2", True),
        ("<think>25+7=32</think>(25+7)*2", True),
        ("2 * (7 + 25) = 64", True),
        ("64 = 2*(7+25)", True),
        ("The answer is **(25 + 7) * 2**.", True),
        ("$\\boxed{(25+7)\\times 2}$", True),
        ("(25 + 7) \u00d7 2", True),
        ("25+7 is 32, so (25+7)*2", True),
        ("5/5*(25+7)*2", False),
        ("(25+7)*2+1-1", False),
        ("25+7*2", False),
        ("64", False),
        ("25*2+7*2", False),
        ("", False),
        ("(25+7)*", False),
        ("((25+7)*2", False),
        ("25+7)*2", False),
        ("25 7 * 2", False),
        ("25//7", False),
        ("2**6", False),
        ("64/(7-7)", False),
        ("-2*(7+25)", False),
        ("<think>(25+7)*2", False),
        ("__import__('os').system('x')", False),
    ],
)
def test_answer_is_evaluated_and_its_numbers_counted(text: str, verdict: bool):
    assert grade(text, ANSWER) is verdict


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "64",
        "{}",
        '{"target": 1}',
        '{"target": 1, "numbers": 2}',
        *(f'{{"target": {target}, "numbers": []}}' for target in ('"x"', '"1/0"', "Infinity", "NaN", "[]")),
    ],
)
def test_a_reference_that_cannot_be_read_gives_no_verdict(answer: str):
    assert grade("1+1", answer) is None


@pytest.mark.parametrize("text", ["(" * 100_000, "1+" * 100_000 + "1", "9" * 100_000, "1" + "/(1" * 400, ")" * 400])
def test_nonsense_of_any_length_is_wrong_at_once(text: str):
    assert grade(text, ANSWER) is False


expressions = st.recursive(
    st.integers(0, 99).map(str),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).flatmap(
        lambda parts: st.sampled_from(["".join(parts), f"({''.join(parts)})"])
    ),
    max_leaves=12,
)


@given(expressions)
def test_values_are_those_of_pythons_arithmetic(text: str):
    numbers = [int(number) for number in text.translate(dict.fromkeys(map(ord, "+-*/()"), " ")).split()]
    # Written by the strategy above: digits, operations and brackets alone.
    exact = compile("".join(f"Fraction({w})" if w.isdigit() else w for w in spaced(text)), "test", "eval")
    try:
        wanted = eval(exact, {"Fraction": Fraction})
    except ZeroDivisionError:
        with pytest.raises(ValueError, match="division by zero"):
            evaluate(text)
        return
    assert evaluate(text) == (wanted, numbers)


def spaced(text: str) -> list[str]:
    for sign in "+-*/()":
        text = text.replace(sign, f" {sign} ")
    return text.split()


@given(st.text(alphabet="0123456789+-*/() =x", max_size=40))
def test_no_text_breaks_the_grader(text: str):
    assert grade(text, ANSWER) in (True, False)


def test_the_last_expression_counts():
    assert last_expression("3+4=7 and 7*9=63.") == "7*9"
    assert last_expression("it is 25.") == "25"
    assert last_expression("nothing here") == ""
