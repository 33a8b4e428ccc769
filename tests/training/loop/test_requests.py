"""Encoding prompts and making requests, with the tokenizer of the embedded model."""

from importlib.resources import files
from typing import Any, cast

import pytest
from transformers import AutoTokenizer

from scalerl.errors import PromptError
from scalerl.training.loop.requests import Asked, RequestMaker, Text
from scalerl.training.tasks.curriculum import Issued
from scalerl.training.tasks.length import LengthControl
from scalerl.training.tasks.prompts import PromptFormat
from scalerl.training.types import LengthPlan, Problem

PROBLEM = Problem(id="a", prompt="1+2=", answer="3", task="arithmetic")
CHAT = "{% for turn in messages %}{{ turn['role'][0] }}:{{ turn['content'] }}/{% endfor %}{{ bos_token }}"


def tiny_text(chat_template: str | None = None) -> Text:
    tokenizer = AutoTokenizer.from_pretrained(str(files("scalerl") / "assets" / "tiny-base"))
    tokenizer.chat_template = chat_template
    return Text(tokenizer=tokenizer, stop_tokens=(tokenizer.eos_token_id,))


@pytest.fixture(scope="module")
def text() -> Text:
    return tiny_text()


def request_maker(text: Text, seed: int = 0) -> RequestMaker:
    length = LengthControl(
        max_tokens=40, plan=lambda seed: LengthPlan(answer_budget=seed % 7 + 30), adjust=lambda num, correct: 0.0
    )
    return RequestMaker(
        problems={"a": Asked(PROBLEM, tuple(text.encode_prompt(PROBLEM.prompt, PromptFormat())))},
        completions_per_group=3,
        temperature=0.7,
        length=length,
        seed=seed,
    )


def test_prompts_get_the_start_token_and_other_text_does_not(text: Text):
    assert text.encode_prompt("1+2=", PromptFormat()) == [text.tokenizer.bos_token_id, *text.encode("1+2=")]
    prompt_format = PromptFormat(template="3*{prompt}")
    assert text.encode_prompt("1+2=", prompt_format) == [text.tokenizer.bos_token_id, *text.encode("3*1+2=")]


def test_chat_template_adds_all_special_tokens():
    text = tiny_text(CHAT)
    tokens = text.encode_prompt("1+2=", PromptFormat(template="({prompt})", chat=True, system="3"))
    # What the vocabulary of digits lacks is unknown to it.
    assert tokens == [*text.encode("s:3/u:(1+2=)/"), text.tokenizer.bos_token_id]
    assert text.tokenizer.bos_token_id not in tokens[:-1]
    # A tokenizer that has one does not use it unasked.
    assert text.encode_prompt("1+2=", PromptFormat()) == [text.tokenizer.bos_token_id, *text.encode("1+2=")]


@pytest.mark.parametrize("at_once", [1, 2, 3, 100])
@pytest.mark.parametrize("chat", [True, False])
def test_prompts_are_encoded_alike_alone_and_in_chunks(monkeypatch: pytest.MonkeyPatch, at_once: int, chat: bool):
    monkeypatch.setattr("scalerl.training.loop.requests.TEXTS_AT_ONCE", at_once)
    text, prompt_format = tiny_text(CHAT), PromptFormat(template="({prompt})", chat=chat)
    # Of unequal lengths, one of them twice: nothing is padded, cut or left out.
    prompts = ["1+2=", "1", "12+3-4=", "1", "5="]
    tokens = text.encode_prompts(prompts, prompt_format)
    assert tokens == [text.encode_prompt(prompt, prompt_format) for prompt in prompts]
    assert tokens == [
        text.tokenizer(
            f"u:({prompt})/{text.tokenizer.bos_token}" if chat else f"({prompt})", add_special_tokens=not chat
        )["input_ids"]
        for prompt in prompts
    ]
    assert text.encode_prompts([], prompt_format) == []


def test_missing_or_refusing_chat_template_is_an_error(text: Text):
    with pytest.raises(PromptError, match="tokenizer has no chat template: set chat = false, or put"):
        text.encode_prompt("1+2=", PromptFormat(chat=True))
    refusing = tiny_text("{{ raise_exception('no system prompts here') }}")
    with pytest.raises(PromptError, match="rejects a system turn and a user turn: no system prompts here"):
        refusing.encode_prompt("1+2=", PromptFormat(chat=True, system="be brief"))


class SlowTokenizer:
    """Decodes one by one alone."""

    def __init__(self, tokenizer):
        self.decode = tokenizer.decode


def test_decoding_drops_the_stop_token_and_keeps_tags(text: Text):
    written = "<think>1+2=3</think>3"
    tokens = text.encode(written)
    assert text.decode([*tokens, text.stop_tokens[0]]) == text.decode(tokens) == written
    assert text.decode([]) == ""
    # All at once as one by one, and as a tokenizer without a fast batch does it.
    several = [tokens, [*tokens, text.stop_tokens[0]], []]
    assert text.decode_all(several) == [written, written, ""]
    slow = Text(tokenizer=cast(Any, SlowTokenizer(text.tokenizer)), stop_tokens=text.stop_tokens)
    assert slow.decode_all(several) == [written, written, ""]


def test_end_of_thinking_is_recognised_letter_by_letter(text: Text):
    ending, written = text.ending("3</think>"), "1+2=3</think>3"
    for tokens in (text.encode(written), [token for letter in written for token in text.encode(letter)]):
        states = [0]
        for token in tokens:
            states.append(ending.after(states[-1], token))
        ends = "3</think>" in text.decode(tokens)
        assert (ending.width in states) == ends


def test_request_seeds_depend_on_run_seed_and_group_only(text: Text):
    maker = request_maker(text)
    first, again, later = (maker.requests(Issued(problem_id="a", epoch=epoch)) for epoch in (0, 0, 1))
    assert first == again
    assert [request.index for request in first] == [0, 1, 2]
    seeds = {request.seed for request in (*first, *later)}
    assert len(seeds) == 6
    assert not seeds & {
        request.seed for request in request_maker(text, seed=1).requests(Issued(problem_id="a", epoch=0))
    }
    for request in first:
        assert request.length == maker.length.plan(request.seed)
        assert request.temperature == 0.7
        assert (request.problem, request.prompt_tokens) == maker.problems["a"][:2]
