import ast
import json

import pytest
from needs import needs_bubblewrap

from scalerl.training.graders.code import run_program
from scalerl.training.graders.sandbox.job import Reference
from scalerl.training.tasks.programs import STEPS, Specified, programs


@needs_bubblewrap
@pytest.mark.parametrize("kind", STEPS)
def test_demonstrations_pass_their_tests(kind: str):
    task = programs(10, 0, num_problems=20, kinds=kind)
    assert task.demonstrations is not None
    for made in task.demonstrations(6, 0):
        outcome = run_program(made.completion, made.problem.answer)
        assert outcome.kind == "passed", (made, outcome)
        shown = made.problem.prompt.rpartition(" = ")[2]
        repeated = f"def f(_):\n return {shown}"
        assert run_program(repeated, made.problem.answer).kind == "failed"


@needs_bubblewrap
def test_slips_make_demonstrations_fail():
    task = programs(10, 0, num_problems=20, slip_rate=0.5)
    assert task.demonstrations is not None
    passed = [run_program(made.completion, made.problem.answer).correct for made in task.demonstrations(20, 0)]
    assert 2 < sum(map(bool, passed)) < 18


BY_HAND = {
    "numbers": (7, [10, 4, 21, 1, 2, 49, -7, 7, 3, 7]),
    "lists": ([4, 1, 6], [[6, 1, 4], [1, 4, 6], [7, 4, 9], [12, 3, 18], [4, 6], [4, 6], [4, 1, 6], [], 11, 3]),
    "strings": ("bad", ["dab", "badbadbad", "bad", "", "abad", "bada", "bbd", "abd", 1, 3]),
}


@pytest.mark.parametrize("kind", STEPS)
def test_every_step_does_what_its_words_say(kind: str):
    argument, expected = BY_HAND[kind]
    made = [Specified(kind=kind, steps=((step, 3, "a", "b"),), inputs=()) for step in STEPS[kind]]
    assert [each.value(argument) for each in made] == expected


def test_withheld_functions_are_never_trained_on():
    task = programs(100, 0, num_problems=500)
    told = {problem.prompt.partition(". f(")[0] for problem in task.training}
    assert len(told) == 500
    assert not told & {problem.prompt.partition(". f(")[0] for problem in task.evaluation}


def test_prompts_show_one_example_and_withhold_the_others():
    for problem in programs(20, 0, num_problems=100, num_tests=4).training:
        asserts = json.loads(problem.answer)["asserts"]
        assert len(asserts) == 5
        argument, value = map(ast.literal_eval, problem.prompt.rpartition(". f(")[2].split(") = "))
        assert (asserts[0],) == Reference.of_calls("f", [([argument], value)]).asserts
        assert len({test.rpartition(" == ")[2] for test in asserts}) > 1


def test_example_may_be_left_out():
    shown, left_out = (programs(5, 0, num_problems=50, show_example=show).training for show in (True, False))
    assert all(problem.prompt.endswith(".") for problem in left_out)
    assert {problem.prompt.partition(" f(")[0] for problem in shown} & {problem.prompt for problem in left_out}
    assert all(len(json.loads(problem.answer)["asserts"]) == 7 for problem in left_out)
