"""From problems to requests: text to tokens and back, and one request per completion."""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from scalerl.tasks.curriculum import Issued
from scalerl.tasks.length import LengthControl
from scalerl.tasks.prompts import Message, PromptFormat, render
from scalerl.types import Ending, Problem, Request, derive_seed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_TEXTS_AT_ONCE = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A tokenizer, with the few functions that a run needs."""

    tokenizer: "PreTrainedTokenizerBase"
    stop_tokens: tuple[int, ...]

    def encode(self, text: str) -> list[int]:
        """Encode text that stands within a sequence: no special tokens are added."""
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[str], *, special_tokens: bool = False) -> list[list[int]]:
        """Encode each text, with or without the special tokens that the tokenizer puts around one."""
        tokens: list[list[int]] = []
        # Large chunks take half the time of single texts and use all cores; all at once would take much memory.
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            chunk = list(texts[start : start + _TEXTS_AT_ONCE])
            encoded = self.tokenizer(chunk, add_special_tokens=special_tokens, return_attention_mask=False)
            tokens.extend(cast(list[list[int]], encoded["input_ids"]))
        return tokens

    def encode_prompt(self, prompt: str | Sequence[Message], prompt_format: PromptFormat) -> list[int]:
        """Encode one prompt; see encode_prompts."""
        return self.encode_prompts([prompt], prompt_format)[0]

    def encode_prompts(
        self, prompts: Sequence[str | Sequence[Message]], prompt_format: PromptFormat
    ) -> list[list[int]]:
        """Encode prompts as the model expects them: by its chat template, or with its own start token if any."""
        chat_template = None
        if getattr(self.tokenizer, "chat_template", None):
            chat_template = functools.partial(self.chat, tools=json.loads(prompt_format.tools or "null"))
        texts = [render(prompt, prompt_format, chat_template) for prompt in prompts]
        # A chat template writes its own special tokens.
        return self.encode_all(texts, special_tokens=not prompt_format.chat)

    def ending(self, text: str) -> Ending:
        """Return what recognises a text in tokens, however they spell it."""
        num = len(self.tokenizer)
        texts = self.tokenizer.batch_decode(
            [[token] for token in range(num)], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return Ending.of_text(text, texts)

    def decode(self, tokens: Sequence[int]) -> str:
        """Decode one completion; see decode_all."""
        return self.decode_all([tokens])[0]

    def decode_all(self, completions: Sequence[Sequence[int]]) -> list[str]:
        """Decode completions, each without its stop token. Thinking tags stay: graders look for them."""
        ended = [bool(tokens) and tokens[-1] in self.stop_tokens for tokens in completions]
        kept = [list(tokens[:-1] if end else tokens) for tokens, end in zip(completions, ended, strict=True)]
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is not None:
            # A quarter of the time of decoding one by one, and on all cores.
            return backend.decode_batch(kept, skip_special_tokens=False)
        decode = functools.partial(self.tokenizer.decode, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return [cast(str, decode(tokens)) for tokens in kept]

    def chat(self, turns: Sequence[Message], *, tools: Sequence[Any] | None = None) -> str:
        """Return the turns of a chat as one text that ends where the model's next turn begins."""
        # An empty list is not the same as no tools to every template.
        rendered = self.tokenizer.apply_chat_template(
            list(turns), tools=list(tools) if tools else None, tokenize=False, add_generation_prompt=True
        )
        return cast(str, rendered)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMaker:
    """Turns the problems that a curriculum issues into requests for an engine."""

    problems: Mapping[str, Problem]
    prompt_tokens: Mapping[str, tuple[int, ...]]
    """Both by a problem's id."""
    completions_per_group: int
    temperature: float
    length: LengthControl
    seed: int
    environments: Mapping[str, str] = field(default_factory=dict)
    """The environment of each problem that has one, by the problem's id."""

    def requests(self, issued: Issued) -> list[Request]:
        """Return one request per completion of a group. Equal keys give equal seeds and plans, also after a resume."""
        key = issued.key
        seeds = [derive_seed("rollout", self.seed, key, index) for index in range(self.completions_per_group)]
        return [
            Request(
                group=key,
                index=index,
                problem=self.problems[issued.problem_id],
                prompt_tokens=self.prompt_tokens[issued.problem_id],
                seed=seed,
                length=self.length.plan(seed),
                temperature=self.temperature,
                environment=self.environments.get(issued.problem_id, ""),
            )
            for index, seed in enumerate(seeds)
        ]
