import itertools
import random
import re
from typing import Any

from scalerl.training.tasks.words import draw_story, words

TIMES = {"twice": 2, "three times": 3, "four times": 4}

# What each sentence does to the number of things, read off the text alone.
EFFECTS: list[tuple[str, Any]] = [
    (r"has (\d+) \w+ with (\d+) \w+ in each", lambda value, a, b: int(a) * int(b)),
    (r"buys (\d+) packs of (\d+)", lambda value, a, b: int(a) * int(b)),
    (r"starts the week with (\d+)", lambda value, a: int(a)),
    (r"attic \w+ finds (\d+)", lambda value, a: int(a)),
    (r"buys (\d+) more", lambda value, a: value + int(a)),
    (r"neighbour gives \w+ (\d+) more", lambda value, a: value + int(a)),
    (r"finds another (\d+)", lambda value, a: value + int(a)),
    (r"gives (\d+) of them", lambda value, a: value - int(a)),
    (r"loses (\d+)", lambda value, a: value - int(a)),
    (r"market \w+ sells (\d+)", lambda value, a: value - int(a)),
    (r"has (twice|three times|four times) as many", lambda value, a: value * TIMES[a]),
    (r"gives half", lambda value: value / 2),
    (r"has (\d+) more", lambda value, a: value + int(a)),
    (r"has (\d+) fewer", lambda value, a: value - int(a)),
    (r"for (\d+) dollars", lambda value, a: value * int(a)),
    (r"equally among (\d+)", lambda value, a: value / int(a)),
    (r"has (\d+) ", lambda value, a: int(a) if value is None else value + int(a)),
]


def read(text: str) -> tuple[float, int]:
    """The answer to a story, and how many operations it took."""
    value, num_steps = None, 0
    for sentence in text.split(". ")[:-1]:
        pattern, effect = next(pair for pair in EFFECTS if re.search(pair[0], sentence))
        match = re.search(pattern, sentence)
        assert match is not None
        num_steps += value is not None or match.re.groups == 2
        value = effect(value, *match.groups())
    assert value is not None
    return value, num_steps


def test_parsed_story_has_the_same_answer_and_steps():
    stream = random.Random(0)
    for number in range(1600):
        num_steps = 1 + number % 4
        story = draw_story(stream, num_steps=num_steps, max_number=20)
        assert read(story.text) == (story.value, num_steps), story.text
        assert len(story.steps) == num_steps
        assert story.value > 0
        assert story.text.endswith("?")
        assert not re.search(r"[{}]|None|\b1 \w+s\b", story.text)


def test_written_steps_are_true_and_consecutive():
    task = words(1, 0, num_problems=1)
    assert task.demonstrations is not None
    for item in task.demonstrations(300, 0):
        thinking, _, answer = item.completion.removeprefix("<think>").partition("</think>")
        equations = re.findall(r"(\d+) ([-+*/]) (\d+) = (\d+)", thinking)
        for left, sign, right, result in equations:
            assert eval(f"{left}{sign}{right}") == int(result)
        for before, after in itertools.pairwise(equations):
            assert after[0] == before[3]
        assert equations[-1][3] == answer == item.problem.answer


def test_stories_vary_and_have_as_many_steps_as_asked_for():
    task = words(1, 0, num_problems=1000, min_steps=2, max_steps=3)
    assert {read(problem.prompt)[1] for problem in task.training} == {2, 3}
    openings = {" ".join(problem.prompt.split()[1:3]) for problem in task.training}
    questions = {re.sub(r"[A-Z]\w+|\b\w+s\b", "_", p.prompt.split(". ")[-1]) for p in task.training}
    assert len(openings) >= 8
    assert len(questions) >= 5
