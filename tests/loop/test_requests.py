"""Between text and tokens, on the embedded base's tokenizer."""

import dataclasses
from importlib.resources import files

import pytest
from transformers import AutoTokenizer

from scalerl.config import load_recipe
from scalerl.errors import PromptError
from scalerl.loop.requests import Asker, Text
from scalerl.tasks.curriculum import Issued
from scalerl.tasks.length import LengthControl
from scalerl.tasks.prompts import PromptFormat
from scalerl.types import LengthPlan, Problem

PROBLEM = Problem(id="a", prompt="1+2=", answer="3", task="arithmetic")
CHAT = "{% for turn in messages %}{{ turn['role'][0] }}:{{ turn['content'] }}/{% endfor %}{{ bos_token }}"


def tiny_text(chat_template: str | None = None) -> Text:
    tokenizer = AutoTokenizer.from_pretrained(str(files("scalerl") / "assets" / "tiny-base"))
    tokenizer.chat_template = chat_template
    return Text(tokenizer=tokenizer, stop_tokens=(tokenizer.eos_token_id,))


@pytest.fixture(scope="module")
def text() -> Text:
    return tiny_text()


def asker(text: Text, *overrides: str) -> Asker:
    length = LengthControl(
        max_tokens=40, plan=lambda seed: LengthPlan(answer_budget=seed % 7 + 30), adjust=lambda num, correct: 0.0
    )
    recipe = load_recipe("tiny-cpu", ["pipeline.completions_per_group=3", *overrides])
    tokens = tuple(text.encode_prompt(PROBLEM.prompt, PromptFormat()))
    return Asker(recipe=recipe, length=length, problems={"a": PROBLEM}, prompt_tokens={"a": tokens})


def test_a_prompt_starts_as_the_model_was_taught_and_text_within_does_not(text: Text):
    assert text.encode_prompt("1+2=", PromptFormat()) == [text.tokenizer.bos_token_id, *text.encode("1+2=")]
    around = PromptFormat(template="3*{prompt}")
    assert text.encode_prompt("1+2=", around) == [text.tokenizer.bos_token_id, *text.encode("3*1+2=")]


def test_a_chat_is_written_by_the_tokenizers_template_which_alone_adds_special_tokens():
    text = tiny_text(CHAT)
    tokens = text.encode_prompt("1+2=", PromptFormat(template="({prompt})", chat=True, system="3"))
    # What the vocabulary of digits lacks is unknown to it.
    assert tokens == [*text.encode("s:3/u:(1+2=)/"), text.tokenizer.bos_token_id]
    assert text.tokenizer.bos_token_id not in tokens[:-1]
    # A tokenizer that has one does not use it unasked.
    assert text.encode_prompt("1+2=", PromptFormat()) == [text.tokenizer.bos_token_id, *text.encode("1+2=")]


@pytest.mark.parametrize("at_once", [1, 2, 3, 100])
@pytest.mark.parametrize("chat", [True, False])
def test_many_prompts_are_each_what_they_are_alone(monkeypatch: pytest.MonkeyPatch, at_once: int, chat: bool):
    monkeypatch.setattr("scalerl.loop.requests._TEXTS_AT_ONCE", at_once)
    text, around = tiny_text(CHAT), PromptFormat(template="({prompt})", chat=chat)
    # Of unequal lengths, one of them twice: nothing is padded, cut or left out.
    prompts = ["1+2=", "1", "12+3-4=", "1", "5="]
    tokens = text.encode_prompts(prompts, around)
    assert tokens == [text.encode_prompt(prompt, around) for prompt in prompts]
    assert tokens == [
        text.tokenizer(
            f"u:({prompt})/{text.tokenizer.bos_token}" if chat else f"({prompt})", add_special_tokens=not chat
        )["input_ids"]
        for prompt in prompts
    ]
    assert text.encode_prompts([], around) == []


def test_a_chat_without_a_template_or_with_one_that_refuses_is_a_sentence(text: Text):
    with pytest.raises(PromptError, match="tokenizer has no chat template: set chat = false, or put"):
        text.encode_prompt("1+2=", PromptFormat(chat=True))
    refusing = tiny_text("{{ raise_exception('no system prompts here') }}")
    with pytest.raises(PromptError, match="refuses a system turn and a user turn: no system prompts here"):
        refusing.encode_prompt("1+2=", PromptFormat(chat=True, system="be brief"))


class SlowTokenizer:
    """Decodes one by one alone."""

    def __init__(self, tokenizer):
        self.decode = tokenizer.decode


def test_decoding_drops_the_end_and_keeps_the_tags(text: Text):
    written = "<think>1+2=3</think>3"
    tokens = text.encode(written)
    assert text.decode([*tokens, text.stop_tokens[0]]) == text.decode(tokens) == written
    assert text.decode([]) == ""
    # All at once as one by one, and as a tokenizer without a fast batch does it.
    several = [tokens, [*tokens, text.stop_tokens[0]], []]
    assert text.decode_all(several) == [written, written, ""]
    slow = dataclasses.replace(text, tokenizer=SlowTokenizer(text.tokenizer))
    assert slow.decode_all(several) == [written, written, ""]


def test_equal_groups_are_asked_with_equal_noise_and_others_with_other(text: Text):
    one = asker(text)
    first, again, later = (one.requests(Issued(problem_id="a", epoch=epoch)) for epoch in (0, 0, 1))
    assert first == again
    assert [request.index for request in first] == [0, 1, 2]
    seeds = {request.seed for request in (*first, *later)}
    assert len(seeds) == 6
    assert not seeds & {request.seed for request in asker(text, "seed=1").requests(Issued(problem_id="a", epoch=0))}
    for request in first:
        assert request.length == one.length.plan(request.seed)
        assert (request.problem, request.prompt_tokens) == (PROBLEM, one.prompt_tokens["a"])
