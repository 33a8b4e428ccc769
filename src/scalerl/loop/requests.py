"""Between text and tokens: what a problem asks of the engine."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from scalerl.config import Recipe
from scalerl.tasks.curriculum import Issued
from scalerl.tasks.length import LengthControl
from scalerl.tasks.prompts import Message, PromptFormat, render
from scalerl.types import Problem, Request, derive_seed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_TEXTS_AT_ONCE = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A tokenizer, as much of it as the loop needs."""

    tokenizer: "PreTrainedTokenizerBase"
    stop_tokens: tuple[int, ...]

    def encode(self, text: str) -> list[int]:
        """Text within a sequence: no special tokens around it."""
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[str], *, special_tokens: bool = False) -> list[list[int]]:
        """The tokens of each text, with or without the special tokens that the tokenizer puts around one."""
        tokens: list[list[int]] = []
        # Many at once take half the time of one by one, on all cores; all at once would take much memory.
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            chunk = list(texts[start : start + _TEXTS_AT_ONCE])
            found = self.tokenizer(chunk, add_special_tokens=special_tokens, return_attention_mask=False)
            tokens.extend(cast(list[list[int]], found["input_ids"]))
        return tokens

    def encode_prompt(self, prompt: str, around: PromptFormat) -> list[int]:
        """One of encode_prompts."""
        return self.encode_prompts([prompt], around)[0]

    def encode_prompts(self, prompts: Sequence[str], around: PromptFormat) -> list[list[int]]:
        """Prompts as the model was taught to see one: by its chat template, or with its own start token if any."""
        chat_template = self._chat if getattr(self.tokenizer, "chat_template", None) else None
        texts = [render(prompt, around, chat_template) for prompt in prompts]
        # A chat template writes its own special tokens.
        return self.encode_all(texts, special_tokens=not around.chat)

    def decode(self, tokens: Sequence[int]) -> str:
        """One of decode_all."""
        return self.decode_all([tokens])[0]

    def decode_all(self, completions: Sequence[Sequence[int]]) -> list[str]:
        """Their texts, without the token that ended each. Thinking tags stay: the grader looks for them."""
        ended = [bool(tokens) and tokens[-1] in self.stop_tokens for tokens in completions]
        kept = [list(tokens[:-1] if end else tokens) for tokens, end in zip(completions, ended, strict=True)]
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is not None:
            # A quarter of the time of one by one, and on all cores.
            return backend.decode_batch(kept, skip_special_tokens=False)
        decode = functools.partial(self.tokenizer.decode, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return [cast(str, decode(tokens)) for tokens in kept]

    def _chat(self, turns: Sequence[Message]) -> str:
        return cast(str, self.tokenizer.apply_chat_template(list(turns), tokenize=False, add_generation_prompt=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """The requests of training."""

    recipe: Recipe
    length: LengthControl
    problems: Mapping[str, Problem]
    prompt_tokens: Mapping[str, tuple[int, ...]]
    """Both by a problem's id."""

    def requests(self, issued: Issued) -> list[Request]:
        """The completions wanted of an issued problem; equal keys after a resume give equal seeds and plans."""
        recipe, key = self.recipe, issued.key
        num = recipe.pipeline.completions_per_group
        seeds = [derive_seed("rollout", recipe.seed, key, index) for index in range(num)]
        return [
            Request(
                group=key,
                index=index,
                problem=self.problems[issued.problem_id],
                prompt_tokens=self.prompt_tokens[issued.problem_id],
                seed=seed,
                length=self.length.plan(seed),
                temperature=recipe.rollout.temperature,
            )
            for index, seed in enumerate(seeds)
        ]
