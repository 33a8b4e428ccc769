import random
import re

import pytest

from scalerl.training.environments.chat import ChatCalls
from scalerl.training.environments.tools import calculator
from scalerl.training.tasks.arithmetic import Expression, arithmetic, calls, demonstrate, solve, try_expression


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


@pytest.mark.parametrize("operations", ["+", "-", "+-", "+-*"])
def test_expressions_equal_python_and_stay_above_zero(operations: str):
    stream = random.Random(0)
    attempts = [try_expression(stream, stream.randint(2, 5), max_number=20, operations=operations) for _ in range(1000)]
    assert sum(map(bool, attempts)) > 100
    for drawn in filter(None, attempts):
        # The text is ours and holds digits and operations alone.
        assert solve(drawn)[-1].result == eval(str(drawn))
        assert all(step.result >= 0 for step in solve(drawn))
        assert all(1 <= number <= 20 for number in drawn.numbers)
        assert set(drawn.operations) <= set(operations)


def test_guesses_skip_the_thinking_and_stay_near():
    stream = random.Random(2)
    drawn = expression("20+20+20")
    guesses = [demonstrate(drawn, stream, guess_share=1.0) for _ in range(200)]
    assert all(guess.startswith("<think></think>") for guess in guesses)
    assert {int(guess.removeprefix("<think></think>")) for guess in guesses} == set(range(51, 70))


def test_slips_make_demonstrations_wrong_at_the_set_rate():
    stream = random.Random(3)
    drawn = expression("20+20+20")
    completions = [demonstrate(drawn, stream, slip_rate=0.2) for _ in range(2000)]
    right = sum(completion == "<think>20+20=40;40+20=60</think>60" for completion in completions) / 2000
    assert right == pytest.approx(0.8**2, abs=0.05)
    # A slip is carried on.
    assert all(re.fullmatch(r"<think>20\+20=(\d+);\1\+20=(\d+)</think>\2", completion) for completion in completions)


def test_conversations_call_the_calculator_for_each_step():
    assert calls(expression("3+4*5"), random.Random(0)) == ("?4*5", "20;", "?3+20", "23;", "23")
    said = calls(expression("47*8-52"), random.Random(0), tool_format="chat")
    read = [call for turn in said[::2] for call in ChatCalls().calls(turn, {"calculator": calculator})]
    assert [calculator(**call.arguments) for call in read] == list(said[1::2]) == ["376", "324"]


def test_conversations_are_what_the_calculator_answers():
    task = arithmetic(1, 0, num_problems=10, operations="+*", tool_share=0.5, guess_share=0.5, slip_rate=0.3)
    assert task.demonstrations is not None
    drawn = task.demonstrations(400, 3)
    conversations = [item for item in drawn if item.earlier]
    assert 0.4 < len(conversations) / len(drawn) < 0.6
    for item in conversations:
        asked, answered = item.earlier[::2], item.earlier[1::2]
        assert [f"{calculator(call[1:])};" for call in asked] == list(answered)
        assert item.completion == answered[-1][:-1]
    right = sum(item.completion == item.problem.answer for item in conversations)
    assert 0.2 < right / len(conversations) < 0.8
