import random

import pytest

from scalerl.graders.rules import exact
from scalerl.tasks.arithmetic import Expression, demonstrate, draw_expression, solve, value


def expression(text: str) -> Expression:
    for sign in "+-*":
        text = text.replace(sign, f" {sign} ")
    words = text.split()
    return Expression(numbers=tuple(map(int, words[::2])), operations=tuple(words[1::2]))


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("37+58-16", "37+58=95;95-16=79"),
        ("7-3", "7-3=4"),
        ("3+4*5", "4*5=20;3+20=23"),
        ("2*3*4-5", "2*3=6;6*4=24;24-5=19"),
        ("30-2*3+4*5", "2*3=6;4*5=20;30-6=24;24+20=44"),
    ],
)
def test_steps_follow_the_usual_precedence(text: str, steps: str):
    assert ";".join(map(str, solve(expression(text)))) == steps
    assert value(expression(text)) == int(steps.rpartition("=")[2])


def test_an_expression_reads_as_it_is_written():
    assert str(expression("37+58-16")) == "37+58-16"


def test_a_slip_is_carried_on():
    assert ";".join(map(str, solve(expression("37+58-16"), [10, 0]))) == "37+58=105;105-16=89"


@pytest.mark.parametrize("operations", ["+", "-", "+-", "+-*"])
def test_expressions_equal_python_and_stay_above_zero(operations: str):
    stream = random.Random(0)
    for _ in range(300):
        drawn = draw_expression(stream, num_terms=stream.randint(2, 5), max_number=20, operations=operations)
        # The text is ours and holds digits and operations alone.
        assert value(drawn) == eval(str(drawn))
        assert all(step.result >= 0 for step in solve(drawn))
        assert all(1 <= number <= 20 for number in drawn.numbers)
        assert set(drawn.operations) <= set(operations)


def test_careful_demonstrations_are_correct():
    stream = random.Random(1)
    for _ in range(200):
        drawn = draw_expression(stream, num_terms=4, max_number=99, operations="+-")
        assert exact(demonstrate(drawn, stream), str(value(drawn))) is True


def test_guesses_skip_the_thinking_and_stay_near():
    stream = random.Random(2)
    drawn = expression("20+20+20")
    guesses = [demonstrate(drawn, stream, guess_share=1.0) for _ in range(200)]
    assert all(guess.startswith("<think></think>") for guess in guesses)
    values = [int(guess.removeprefix("<think></think>")) for guess in guesses]
    assert min(values) >= 51
    assert max(values) <= 69
    assert len(set(values)) == 19


def test_slips_make_demonstrations_wrong_at_the_set_rate():
    stream = random.Random(3)
    drawn = expression("20+20+20")
    completions = [demonstrate(drawn, stream, slip_rate=0.2) for _ in range(2000)]
    right = sum(completion == "<think>20+20=40;40+20=60</think>60" for completion in completions) / 2000
    assert right == pytest.approx(0.8**2, abs=0.05)
    assert all(completion.count("=") == 2 for completion in completions)
