import re
from collections.abc import Sequence
from typing import Any

import pytest

from scalerl.errors import PromptError
from scalerl.training.tasks.prompts import Message, PromptFormat, render
from scalerl.training.types import Problem


def tagged(turns: Sequence[Message]) -> str:
    return "".join(f"[{turn['role']}]{turn['content']}" for turn in turns) + "[assistant]"


BOXED = "Solve: {prompt}\nPut the answer in \\boxed{}."
LATEX = (r"\boxed{answer}", "x_{max}", "x^{n}", r"\frac{a}{b}", "{}", "{1}")


@pytest.mark.parametrize(
    ("prompt", "settings", "expected"),
    [
        ("1+1=", {}, "1+1="),
        ("what is {prompt}?", {"template": BOXED}, "Solve: what is {prompt}?\nPut the answer in \\boxed{}."),
        *(("q", {"template": f"{{prompt}} as {latex}"}, f"q as {latex}") for latex in LATEX),
        ("1+1", {"template": "Q: {prompt}", "chat": True}, "[user]Q: 1+1[assistant]"),
        ("1+1", {"chat": True, "system": "Be brief."}, "[system]Be brief.[user]1+1[assistant]"),
    ],
)
def test_prompts_as_they_are_asked(prompt: str, settings: dict[str, Any], expected: str):
    assert render(prompt, PromptFormat(**settings), tagged) == expected


def test_content_is_that_of_the_bare_problem():
    assert Problem(id="a", prompt="1+1", answer="2", task="t").content_hash != (
        Problem(id="a", prompt=render("1+1", PromptFormat(template="Q: {prompt}")), answer="2", task="t").content_hash
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"template": "Solve this."}, 'template is "Solve this." but must contain {prompt}'),
        ({"template": "{question} {prompt}"}, "template contains {question}, but only {prompt} can be filled in"),
        ({"system": "Be brief."}, "system is set but chat is false"),
    ],
)
def test_formats_that_cannot_be(settings: dict[str, Any], message: str):
    with pytest.raises(PromptError, match=re.escape(message)):
        PromptFormat(**settings)
