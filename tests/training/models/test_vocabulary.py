import pytest
import torch
from transformers import AutoTokenizer

from scalerl.training.answer_format import AnswerFormat
from scalerl.training.models.load import LoadedModel, head, load_model
from scalerl.training.models.tiny import build_tokenizer
from scalerl.training.models.vocabulary import add_tokens, missing_tokens

TAGS = ("<think>", "</think>")
TEXTS = ["f(x): add 3", "<think>1+2=3</think>def f(x):\n return x+3", "digit it", "12+3="]


@pytest.fixture
def base() -> LoadedModel:
    return load_model("tiny-base", dtype=torch.float32, device="cpu")


def test_unknown_characters_and_frequent_words_are_missing(base: LoadedModel):
    characters = missing_tokens(base.tokenizer, TEXTS, words=False, tags=TAGS)
    assert {"(", ":", "\n", "a", "x"} <= set(characters)
    assert not {"+", "3", "<"} & set(characters)
    assert all(len(token) == 1 for token in characters)
    words = missing_tokens(base.tokenizer, TEXTS, words=True, tags=TAGS)
    assert words == [*characters, "add", "def", "digit", "it", "return"]
    # Repeating a text does not make its words more frequent.
    rare = [f"{number}+1=" for number in range(2000)] + ["rare"] * 100
    assert "rare" not in missing_tokens(base.tokenizer, rare, words=True)


def test_nothing_is_missing_twice(base: LoadedModel):
    add_tokens(base.tokenizer, missing_tokens(base.tokenizer, TEXTS, words=True, tags=TAGS), tags=TAGS)
    assert missing_tokens(base.tokenizer, TEXTS, words=True, tags=TAGS) == []


def test_known_text_keeps_its_tokens_and_all_text_survives(base: LoadedModel, tmp_path):
    known = ["12+3=", "<think>12+3=15;15-4=11</think>11"]
    before = [base.tokenizer(text)["input_ids"] for text in known]
    add_tokens(base.tokenizer, missing_tokens(base.tokenizer, TEXTS, words=True, tags=TAGS), tags=TAGS)
    base.tokenizer.save_pretrained(tmp_path)
    for tokenizer in (base.tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        assert [tokenizer(text)["input_ids"] for text in known] == before
        for text in TEXTS:
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            assert tokenizer.unk_token_id not in ids
            assert tokenizer.decode(ids, skip_special_tokens=True) == text
        # "it" is a token of its own, not a part of "digit".
        assert len(tokenizer("digit it", add_special_tokens=False)["input_ids"]) == 3


def test_model_gets_rows_for_new_tokens_and_keeps_the_others(base: LoadedModel):
    weight = head(base.model).weight.clone()
    torch.manual_seed(0)
    add_tokens(base.tokenizer, ["(", "def"], base.model)
    grown = head(base.model).weight
    assert grown.shape[0] == len(base.tokenizer) == base.model.config.vocab_size == weight.shape[0] + 2
    assert torch.equal(grown[: weight.shape[0]], weight)
    assert grown[weight.shape[0] :].std() > 0.01
    assert base.model.get_input_embeddings().weight is grown


def test_a_new_tokenizer_may_have_words():
    tokenizer = build_tokenizer(iter(TEXTS), AnswerFormat())
    assert missing_tokens(tokenizer, TEXTS, words=False, tags=TAGS) == []
    add_tokens(tokenizer, missing_tokens(tokenizer, TEXTS, words=True, tags=TAGS), tags=TAGS)
    assert len(tokenizer("<think>add", add_special_tokens=False)["input_ids"]) == 2
