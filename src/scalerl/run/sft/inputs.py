"""What a run of SFT starts from: a model, its tokenizer, and the demonstrations of one or more tasks as tokens."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import torch

from scalerl.answer_format import AnswerFormat
from scalerl.config import Recipe
from scalerl.config.parts import NEW_MODEL, SftSettings
from scalerl.environments.build import offer_tools
from scalerl.loop.requests import Text
from scalerl.models.load import load_model
from scalerl.models.tiny import TinyShape, build_model, build_tokenizer
from scalerl.models.vocabulary import add_tokens, missing_tokens
from scalerl.run.sft.demonstrations import Examples, draw, encode, merged, num_wanted
from scalerl.tasks.files import hide_hub_warnings
from scalerl.tasks.task import Task, shared_answer
from scalerl.types import derive_seed

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


def load_inputs(
    recipe: Recipe, tasks: Mapping[str, Task], base: str, shape: TinyShape, device: str, drawing: Callable[[int], None]
) -> tuple["PreTrainedModel", Text, Examples]:
    """Load or build the model, draw the demonstrations and encode them; `drawing` is told how many are drawn."""
    settings, new, seed, answer = recipe.sft, base == NEW_MODEL, recipe.seed, shared_answer(tasks)
    # The model before the demonstrations: a wrong path shows at once, and drawing them takes a while.
    trust = recipe.model.trust_remote_code
    with hide_hub_warnings():
        given = None if new else load_model(base, dtype=torch.float32, device="cpu", trust_remote_code=trust)
    drawing(num_wanted(settings, new=new))
    weights = {name: recipe.tasks[name].weight if recipe.tasks else 1.0 for name in tasks}
    shares = {name: weight / sum(weights.values()) for name, weight in weights.items()}
    drawn = {name: draw(task, settings, seed=seed, new=new, share=shares[name]) for name, task in tasks.items()}
    texts = [
        text
        for items in drawn.values()
        for item in items
        for text in (item.problem.prompt, *item.earlier, item.completion)
    ]
    torch.manual_seed(derive_seed("sft weights", seed))
    if given is None:
        tokenizer = build_tokenizer(iter(texts), answer)
        _extend(tokenizer, None, texts, settings, answer)
        model = build_model(tokenizer, shape)
        stop_tokens = (cast(int, tokenizer.eos_token_id),)
    else:
        tokenizer, model, stop_tokens = cast("PreTrainedTokenizerFast", given.tokenizer), given.model, given.stop_tokens
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        _extend(tokenizer, model, texts, settings, answer)
    text = Text(tokenizer=tokenizer, stop_tokens=stop_tokens)
    model.to(device)  # pyright: ignore[reportArgumentType]
    context = getattr(model.config, "max_position_embeddings", math.inf)
    encoded = [
        encode(drawn[name], offer_tools(task, text), text, settings, context=context, share=shares[name])
        for name, task in tasks.items()
    ]
    return model, text, merged(encoded)


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
