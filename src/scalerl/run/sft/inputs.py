"""What a run of SFT starts from: a model, its tokenizer, and the demonstrations of one or more tasks as tokens."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import torch

from scalerl.answer_format import AnswerFormat
from scalerl.config.parts import NEW_MODEL, SftSettings
from scalerl.environments.build import offer_tools
from scalerl.loop.requests import Text
from scalerl.models.load import LoadedModel, load_model
from scalerl.models.tiny import TinyShape, build_model, build_tokenizer
from scalerl.models.vocabulary import add_tokens, missing_tokens
from scalerl.run.sft.demonstrations import Examples, draw, encode, merged, num_wanted
from scalerl.tasks.files import hide_hub_warnings
from scalerl.tasks.task import Task, shared_answer
from scalerl.types import derive_seed

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


@dataclass(frozen=True, slots=True, kw_only=True)
class SftStart:
    """What a run of SFT starts from, besides its task and settings."""

    model: str = NEW_MODEL
    """A folder, a hub name or a .gguf file; "new" builds a small Llama of `shape`."""
    shape: TinyShape = field(default_factory=TinyShape)
    seed: int = 0
    dtype: torch.dtype = torch.float32
    """Precision of the body; master weights are FP32."""
    device: str = ""
    """Empty for a GPU if there is one."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model."""

    @property
    def new(self) -> bool:
        return self.model == NEW_MODEL


def load_inputs(
    tasks: Mapping[str, Task],
    settings: SftSettings,
    start: SftStart,
    device: str,
    drawing: Callable[[int], None],
    *,
    weights: Mapping[str, float] | None = None,
) -> tuple["PreTrainedModel", Text, Examples]:
    """Load or build the model, draw the demonstrations and encode them; `drawing` is told how many are drawn."""
    answer = shared_answer(tasks)
    # The model before the demonstrations: a wrong path shows at once, and drawing them takes a while.
    with hide_hub_warnings():
        given = None if start.new else _given(start)
    drawing(num_wanted(settings, new=start.new))
    weights = weights or dict.fromkeys(tasks, 1.0)
    shares = {name: weights[name] / sum(weights.values()) for name in tasks}
    drawn = {
        name: draw(task, settings, seed=start.seed, new=start.new, share=shares[name]) for name, task in tasks.items()
    }
    texts = [
        text
        for items in drawn.values()
        for item in items
        for text in (item.problem.prompt, *item.earlier, item.completion)
    ]
    torch.manual_seed(derive_seed("sft weights", start.seed))
    if given is None:
        tokenizer = build_tokenizer(iter(texts), answer)
        _extend(tokenizer, None, texts, settings, answer)
        model = build_model(tokenizer, start.shape)
        text = Text(tokenizer=tokenizer, stop_tokens=(cast(int, tokenizer.eos_token_id),))
    else:
        tokenizer, model = cast("PreTrainedTokenizerFast", given.tokenizer), given.model
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        _extend(tokenizer, model, texts, settings, answer)
        text = Text(tokenizer=tokenizer, stop_tokens=given.stop_tokens)
    model.to(device)  # pyright: ignore[reportArgumentType]
    context = getattr(model.config, "max_position_embeddings", math.inf)
    encoded = [
        encode(drawn[name], offer_tools(task, text), text, settings, context=context, share=shares[name])
        for name, task in tasks.items()
    ]
    return model, text, merged(encoded)


def _given(start: SftStart) -> LoadedModel:
    return load_model(start.model, dtype=torch.float32, device="cpu", trust_remote_code=start.trust_remote_code)


def _extend(
    tokenizer: "PreTrainedTokenizerFast",
    model: "PreTrainedModel | None",
    texts: Sequence[str],
    settings: SftSettings,
    answer: AnswerFormat,
) -> None:
    if settings.new_tokens == "none":
        return
    tags = [tag for tag in (answer.thinking_start, answer.thinking_end) if tag]
    tokens = missing_tokens(tokenizer, texts, words=settings.new_tokens == "words", tags=tags)
    add_tokens(tokenizer, tokens, model, tags=tags)
