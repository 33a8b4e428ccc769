"""From problems to requests: text to tokens and back, and one request per completion.

Untrusted text (problems, results of tools) must not become control tokens: "<|im_end|>" in it would end a turn. So it
is cut inside such a token before it goes into a template, and the parts are encoded one by one. The text is unchanged.
"""

import functools
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from scalerl.training.models.template import rendered
from scalerl.training.tasks.curriculum import Issued
from scalerl.training.tasks.length import LengthControl
from scalerl.training.tasks.prompts import Message, PromptFormat, render
from scalerl.training.types import Ending, Problem, Request, derive_seeds

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


TEXTS_AT_ONCE = 1024
_CUT = "\U0010fffd"
"""Marks where text is cut for encoding: the last private-use character."""


class Text:
    """A tokenizer, with the few functions that a run needs."""

    def __init__(self, *, tokenizer: "PreTrainedTokenizerBase", stop_tokens: tuple[int, ...]) -> None:
        self.tokenizer = tokenizer
        self.stop_tokens = stop_tokens
        tokens = getattr(tokenizer, "added_tokens_decoder", {})
        self.added = {number: str(token) for number, token in tokens.items() if len(str(token).strip()) > 1}
        """Control tokens and the tokenizer's other tags, such as those around the result of a tool, by number."""
        # The unknown token cannot be used for an attack.
        self.added.pop(getattr(tokenizer, "unk_token_id", None), None)
        self.special = {number: text for number, text in self.added.items() if tokens[number].special}
        """Control tokens by number; untrusted text may not become one."""
        self._skeletons = {re.sub(r"\w", "", text) or text for text in self.special.values()}
        """The signs of each control token without its letters, such as "<||>"."""

    def plain(self, texts: Sequence[str], *, tags: bool = False) -> list[str]:
        """Return untrusted texts for a template: `encode` gives them no control token and, with `tags`, no tag."""
        unwanted = self.added if tags else self.special
        texts = [text.replace(_CUT, "\ufffd") for text in texts]
        may_spell = self._suspicion(unwanted)
        suspects = [index for index, text in enumerate(texts) if may_spell(text)]
        # Only the tokenizer decides whether a text has one.
        for index, ids in zip(suspects, self.encode_all([texts[index] for index in suspects]), strict=True):
            if not unwanted.keys().isdisjoint(ids):
                texts[index] = self._cut(texts[index], unwanted)
        return texts

    def plain_values(self, value: Any) -> Any:
        """Return an untrusted JSON value, such as a tool's schema, with `plain` texts and without tags."""
        if isinstance(value, str):
            return self.plain([value], tags=True)[0]
        if isinstance(value, Mapping):
            return {self.plain_values(key): self.plain_values(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.plain_values(inner) for inner in value]
        return value

    def apart(self, render: Callable[[Sequence[str]], str], texts: Sequence[str]) -> str:
        """Return `render(texts)` for untrusted plain texts that a template may change.

        A template that removes something from a text can join the halves of a control token. Such texts are cut
        everywhere: then nothing of them is removed or joined.
        """
        rendered = render(texts)
        if any(map(self._may_join, texts)):
            divided = render([_CUT.join(text) for text in texts])
            if self._control_tokens(rendered) != self._control_tokens(divided):
                return divided
        return rendered

    def _may_join(self, text: str) -> bool:
        """Return whether a text holds the signs of a control token in their order, with anything between them."""

        def holds(skeleton: str) -> bool:
            rest = iter(text)
            return all(sign in rest for sign in skeleton)

        return any(map(holds, self._skeletons))

    def _control_tokens(self, text: str) -> list[int]:
        return [token for token in self.encode(text) if token in self.special]

    def _suspicion(self, unwanted: Mapping[int, str]) -> Callable[[str], object]:
        """Return a quick test: a text for which it is false has none of these tokens."""
        tokens = self.tokenizer.added_tokens_decoder if unwanted else {}
        if any(tokens[number].normalized for number in unwanted):
            return lambda text: True  # the tokenizer may normalise other spellings to it
        return re.compile("|".join({re.escape(token[:2]) for token in unwanted.values()}) or "(?!)").search

    def _cut(self, text: str, unwanted: Mapping[int, str]) -> str:
        """Return a text cut inside the unwanted tokens, or everywhere if they have another spelling."""
        longest_first = sorted(unwanted.values(), key=len, reverse=True)
        cut = re.sub("|".join(map(re.escape, longest_first)), lambda found: _CUT.join(found[0]), text)
        return cut if unwanted.keys().isdisjoint(self.encode(cut)) else _CUT.join(text)

    def encode(self, text: str) -> list[int]:
        """Encode text inside a sequence, without special tokens around it."""
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[str], *, special_tokens: bool = False) -> list[list[int]]:
        """Encode each text, with or without the special tokens that the tokenizer puts around one."""
        tokens = self._encode(texts, special_tokens)
        for index, text in enumerate(texts):
            if _CUT in text:
                within = itertools.chain.from_iterable(self._encode(text.split(_CUT), False))
                before, after = self._around() if special_tokens else ([], [])
                tokens[index] = [*before, *within, *after]
        return tokens

    def _around(self) -> tuple[list[int], list[int]]:
        """Return the special tokens that the tokenizer puts before a text and after it."""
        bare = self._encode(["a"], False)[0]
        whole = self._encode(["a"], True)[0]
        start = next(index for index in range(len(whole)) if whole[index : index + len(bare)] == bare)
        return whole[:start], whole[start + len(bare) :]

    def _encode(self, texts: Sequence[str], special_tokens: bool) -> list[list[int]]:
        tokens: list[list[int]] = []
        # Large chunks take half the time of single texts and use all cores; all at once would take much memory.
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            chunk = list(texts[start : start + TEXTS_AT_ONCE])
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
        return self.encode_plain(self.plain_prompts(prompts), prompt_format)

    def plain_prompts(self, prompts: Sequence[str | Sequence[Message]]) -> list[str | list[Message]]:
        """Return prompts with `plain` texts."""
        texts = itertools.chain.from_iterable(map(_texts_in, prompts))
        plain = iter(self.plain(list(texts)))
        result: list[str | list[Message]] = []
        for prompt in prompts:
            if isinstance(prompt, str):
                result.append(next(plain))
                continue
            turns: list[Message] = []
            for turn in prompt:
                turns.append({key: next(plain) for key in turn})
            result.append(turns)
        return result

    def encode_plain(self, prompts: Sequence[str | Sequence[Message]], prompt_format: PromptFormat) -> list[list[int]]:
        """Encode prompts whose texts are already `plain`."""
        chat_template = None
        if getattr(self.tokenizer, "chat_template", None):
            chat_template = functools.partial(self.chat, tools=json.loads(prompt_format.tools or "null"))

        def written(prompt: str | Sequence[Message]) -> str:
            if isinstance(prompt, str):
                return self.apart(lambda texts: render(texts[0], prompt_format, chat_template), [prompt])
            return self.apart(
                lambda texts: render(_with_texts(prompt, texts), prompt_format, chat_template),
                [turn["content"] for turn in prompt],
            )

        texts = [written(prompt) for prompt in prompts]
        # A chat template writes its own special tokens.
        return self.encode_all(texts, special_tokens=not prompt_format.chat)

    def ending(self, text: str) -> Ending:
        """Return an Ending that recognises a text in any spelling."""
        num = len(self.tokenizer)
        texts = self.tokenizer.batch_decode(
            [[token] for token in range(num)], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return Ending.of_text(text, texts)

    def decode(self, tokens: Sequence[int]) -> str:
        """Decode one completion; see decode_all."""
        return self.decode_all([tokens])[0]

    def decode_all(self, completions: Sequence[Sequence[int]]) -> list[str]:
        """Decode completions, each without its stop token. Thinking tags are kept for graders."""
        kept = list(map(self._without_stop, completions))
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is not None:
            # This takes a quarter of the time of decoding one by one, and uses all cores.
            return backend.decode_batch(kept, skip_special_tokens=False)
        decode = functools.partial(self.tokenizer.decode, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return [cast(str, decode(tokens)) for tokens in kept]

    def _without_stop(self, tokens: Sequence[int]) -> list[int]:
        has_stop = bool(tokens) and tokens[-1] in self.stop_tokens
        return list(tokens[:-1]) if has_stop else list(tokens)

    def chat(self, turns: Sequence[Message], *, tools: Sequence[Any] | None = None) -> str:
        """Return the turns of a chat as one text that ends where the model's next turn begins."""
        # Some templates treat an empty list differently from no tools.
        return rendered(self.tokenizer, turns, tools=list(tools) if tools else None, add_generation_prompt=True)

    def chat_untrusted(self, turns: Sequence[Message], *, before: int = 0, tools: Sequence[Any] | None = None) -> str:
        """Return `chat` of turns; those after the first `before` have untrusted plain texts."""
        ours = turns[:before]
        theirs = turns[before:]
        return self.apart(
            lambda texts: self.chat([*ours, *_with_texts(theirs, texts)], tools=tools),
            [turn["content"] for turn in theirs],
        )


def _with_texts(turns: Sequence[Message], texts: Sequence[str]) -> list[Message]:
    return [{**turn, "content": text} for turn, text in zip(turns, texts, strict=True)]


def _texts_in(prompt: str | Sequence[Message]) -> list[str]:
    """Return the texts of a prompt: itself, or the role and the content of each turn."""
    if isinstance(prompt, str):
        return [prompt]
    return list(itertools.chain.from_iterable(turn.values() for turn in prompt))


def spells_special(plain: str | Sequence[Message]) -> bool:
    """Return whether a plain prompt was cut, because it contained a control token."""
    return any(_CUT in text for text in _texts_in(plain))


class Asked(NamedTuple):
    """A problem, as the requests for its completions have it."""

    problem: Problem
    prompt_tokens: tuple[int, ...]
    environment: str = ""
    hint_tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMaker:
    """Turns the problems that a curriculum issues into requests for an engine."""

    problems: Mapping[str, Asked]
    """By a problem's id."""
    completions_per_group: int
    temperature: float
    length: LengthControl
    seed: int

    def requests(self, issued: Issued) -> list[Request]:
        """Return one request per completion of a group. Equal keys give equal seeds and plans, also after a resume."""
        seeds = derive_seeds("rollout", self.seed, issued.key, num=self.completions_per_group)
        common = {"group": issued.key, "temperature": self.temperature, **self.problems[issued.problem_id]._asdict()}
        return [
            Request(index=index, seed=seed, length=self.length.plan(seed), **common) for index, seed in enumerate(seeds)
        ]
