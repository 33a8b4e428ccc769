"""Build the small Llama and the character tokenizer with which SFT starts a new model."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from scalerl.training.answer_format import AnswerFormat

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

BOS = "<bos>"
EOS = "<eos>"
PAD = "<pad>"
UNKNOWN = "<unk>"


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyShape:
    """Sizes of the small Llama; by default it has 0.86 million parameters."""

    hidden: int = 128
    intermediate: int = 384
    layers: int = 4
    heads: int = 4
    context: int = 128
    """Largest number of tokens of a prompt and its completion together."""


def build_tokenizer(texts: Iterator[str], answer: AnswerFormat) -> "PreTrainedTokenizerFast":
    """Build a tokenizer with one token per character of these texts, and one for each thinking tag.

    The tags are ordinary tokens, so that decoding without special tokens keeps them.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    tags = [tag for tag in (answer.thinking_start, answer.thinking_end) if tag]
    characters = sorted(set("".join(_without_tags(text, tags) for text in texts)))
    vocabulary = {token: index for index, token in enumerate([PAD, BOS, EOS, UNKNOWN, *tags, *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    alternatives = "|".join([*map(re.escape, tags), r"[\s\S]"])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(alternatives), behavior="isolated")  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.Fuse()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.post_processor = processors.TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single=f"{BOS} $A", special_tokens=[(BOS, vocabulary[BOS])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        unk_token=UNKNOWN,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def build_model(tokenizer: "PreTrainedTokenizerFast", shape: TinyShape) -> "PreTrainedModel":
    """Build a Llama of this shape with random weights, from torch's random state."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=shape.context,
        # The usual 0.02 is for widths of thousands; at this width, activations would be too small.
        initializer_range=0.05,
        tie_word_embeddings=True,
        bos_token_id=cast(int, tokenizer.bos_token_id),
        eos_token_id=cast(int, tokenizer.eos_token_id),
        pad_token_id=cast(int, tokenizer.pad_token_id),
    )
    return LlamaForCausalLM(config)


def _without_tags(text: str, tags: Sequence[str]) -> str:
    for tag in tags:
        text = text.replace(tag, "")
    return text
