"""Add tokens for text that a tokenizer cannot encode, or encodes letter by letter.

tokens = missing_tokens(tokenizer, texts, words=True)      # ["(", ")", "def", "return", ...]
add_tokens(tokenizer, tokens, model)                       # new rows of the embedding, to be trained
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_WORD = re.compile(r"[^\W\d_]{2,}")
_LEAST_SHARE = 0.002
"""Smallest share of the different texts that must contain a word: a rare word would not be learned."""


def missing_tokens(
    tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str], *, words: bool, tags: Sequence[str] = ()
) -> list[str]:
    """Return the characters that the tokenizer does not know and, with `words`, frequent words.

    Words are runs of two or more letters that take several tokens. The tags around thinking are not divided.
    """
    for tag in tags:
        texts = [text.replace(tag, " ") for text in texts]
    texts = list(dict.fromkeys(texts))
    characters = sorted(set("".join(texts)))
    unknown = [character for character in characters if not _is_known(tokenizer, character)]
    if not words:
        return unknown
    num_texts: Counter[str] = Counter()
    for text in texts:
        num_texts.update(set(_WORD.findall(text)))
    frequent = sorted(word for word, num in num_texts.items() if num >= _LEAST_SHARE * len(texts))
    return unknown + [word for word in frequent if not _is_known(tokenizer, word) or len(_ids(tokenizer, word)) > 1]


def add_tokens(
    tokenizer: "PreTrainedTokenizerBase",
    tokens: Sequence[str],
    model: "PreTrainedModel | None" = None,
    *,
    tags: Sequence[str] = (),
) -> None:
    """Add tokens to the tokenizer, and rows with random weights for them to the model, from torch's random state."""
    from tokenizers import AddedToken

    if not tokens:
        return
    # Added tokens are matched before all others, so a new letter would divide a tag unless the tag is also added. A tag
    # that is a token already keeps its number.
    whole = [tag for tag in tags if len(_ids(tokenizer, tag)) == 1 and _is_known(tokenizer, tag)]
    # single_word: "it" must not match inside "digit".
    added = [AddedToken(token, single_word=len(token) > 1, normalized=False) for token in tokens]
    tokenizer.add_tokens(cast(Any, [*(AddedToken(tag, normalized=False) for tag in whole), *added]))
    if model is not None and len(tokenizer) > cast(Any, model.get_input_embeddings()).weight.shape[0]:
        # Do not use the mean of the old rows, the default of transformers: all new tokens would be equally likely.
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)


def _ids(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    return cast(list[int], tokenizer(text, add_special_tokens=False)["input_ids"])


def _is_known(tokenizer: "PreTrainedTokenizerBase", text: str) -> bool:
    ids = _ids(tokenizer, text)
    return bool(ids) and tokenizer.unk_token_id not in ids
