"""Between text and tokens, on the embedded base's tokenizer."""

from importlib.resources import files

import numpy as np
import pytest
from transformers import AutoTokenizer

from scalerl.config import load_recipe
from scalerl.tasks.curriculum import Issued
from scalerl.tasks.length import LengthControl
from scalerl.tasks.problems import Task
from scalerl.train.ask import Asker, Judge, Text
from scalerl.types import Completion, LengthPlan, Problem

PROBLEM = Problem(id="a", prompt="1+2=", answer="3", task="arithmetic")


@pytest.fixture(scope="module")
def text() -> Text:
    tokenizer = AutoTokenizer.from_pretrained(str(files("scalerl") / "assets" / "tiny-base"))
    return Text(tokenizer=tokenizer, stop_tokens=(tokenizer.eos_token_id,))


def asker(text: Text, grader: str = "exact", *overrides: str) -> Asker:
    task = Task(name="arithmetic", training=(PROBLEM,), evaluation=(), grader=grader)
    length = LengthControl(
        max_tokens=40,
        plan=lambda seed: LengthPlan(answer_budget=seed % 7 + 30),
        adjust=lambda num_tokens, correct: -0.01 * num_tokens if correct else 0.0,
    )
    recipe = load_recipe("tiny-cpu", ["pipeline.completions_per_group=3", *overrides])
    return Asker(recipe=recipe, text=text, judge=Judge(text=text, task=task), length=length, problems={"a": PROBLEM})


def completions(one: Asker, *answers: str) -> list[Completion]:
    made = []
    for request, answer in zip(one.requests(Issued(problem_id="a", epoch=0)), answers, strict=True):
        tokens = np.array([*one.text.encode(answer), one.text.stop_tokens[0]], dtype=np.int32)
        made.append(
            Completion(
                request=request,
                tokens=tokens,
                log_probs=np.zeros(len(tokens), dtype=np.float32),
                versions=np.zeros(len(tokens), dtype=np.int32),
                forced=np.zeros(len(tokens), dtype=np.bool_),
                finish="stop",
            )
        )
    return made


def test_a_prompt_starts_as_the_model_was_taught_and_text_within_does_not(text: Text):
    assert text.encode_prompt("1+2=") == [text.tokenizer.bos_token_id, *text.encode("1+2=")]


def test_decoding_drops_the_end_and_keeps_the_tags(text: Text):
    written = "<think>1+2=3</think>3"
    tokens = text.encode(written)
    assert text.decode([*tokens, text.stop_tokens[0]]) == text.decode(tokens) == written
    assert text.decode([]) == ""


def test_equal_groups_are_asked_with_equal_noise_and_others_with_other(text: Text):
    one = asker(text)
    first, again, later = (one.requests(Issued(problem_id="a", epoch=epoch)) for epoch in (0, 0, 1))
    assert first == again
    assert [request.index for request in first] == [0, 1, 2]
    seeds = {request.seed for request in (*first, *later)}
    assert len(seeds) == 6
    assert not seeds & {
        request.seed for request in asker(text, "exact", "seed=1").requests(Issued(problem_id="a", epoch=0))
    }
    for request in first:
        assert request.length == one.length.plan(request.seed)


def test_correct_is_what_is_reported_and_reward_what_is_trained_on(text: Text):
    one = asker(text, "exact", "reward.correct=2.0", "reward.wrong=-0.5")
    group = one.grade(completions(one, "<think>1+2=3</think>3", "<think>1+2=4</think>4", "3"))
    assert group.key == "0/a"
    assert group.correct[:2] == (True, False)
    assert group.rewards[:2] == (pytest.approx(2.0 - 0.01 * len(group.completions[0])), -0.5)


def no_verdict(completion: str, answer: str, **tags: str) -> bool | None:
    return None


def test_without_a_verdict_a_completion_counts_as_neither(text: Text):
    one = asker(text, f"{__name__}:no_verdict")
    group = one.grade(completions(one, "3", "3", "4"))
    assert group.correct == (None, None, None)
    assert (group.num_correct, group.num_graded) == (0, 0)
    assert group.rewards == (-1.0, -1.0, -1.0)
