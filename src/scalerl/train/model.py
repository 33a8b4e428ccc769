"""A causal language model as a Hugging Face folder: read, taken apart into body and head, and written.

Only safetensors weights are read: pickle runs whatever code a file holds. Nothing here knows a model family; what the
parts below assume of one (logits = hidden states x head) is tried once on loading.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from scalerl.train.checkpoint import new_folder

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


class ModelError(ValueError):
    """A model that cannot be used, in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model with what sampling from it needs."""

    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerBase"
    stop_tokens: tuple[int, ...]
    """A completion ends with one of these; the tokenizer's own end token first."""
    context: int
    """Most tokens of a prompt and its completion together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What turns hidden states into logits; of a tied model, the weight is the embedding's."""

    weight: Tensor
    bias: Tensor | None


def load_model(
    path: str | os.PathLike[str], *, dtype: torch.dtype, device: torch.device | str, context: int | None = None
) -> LoadedModel:
    """The model at a folder or of a hub name; `context` is the least one that will do."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    name = os.fspath(path)
    folder = Path(name).expanduser()
    if folder.is_dir():
        _check_folder(folder)
        name = str(folder)
    elif _looks_like_a_folder(name):
        what = "is a file, not a folder" if folder.exists() else "does not exist"
        raise ModelError(f"model {name}: this folder {what}")
    with _one_sentence(name):
        model = AutoModelForCausalLM.from_pretrained(
            name, dtype=dtype, use_safetensors=True, attn_implementation="sdpa"
        )
        tokenizer = AutoTokenizer.from_pretrained(name)
    longest = _context(name, model.config, context)
    stop_tokens = _stop_tokens(name, tokenizer, model)
    model.to(torch.device(device)).eval()  # pyright: ignore[reportArgumentType]
    _check_head(name, model)
    return LoadedModel(model=model, tokenizer=tokenizer, stop_tokens=stop_tokens, context=longest)


def save_model(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", folder: str | os.PathLike[str]) -> Path:
    """Write a folder that load_model, transformers and vLLM read: whole or not at all, and never over another."""
    target = Path(folder)
    if target.exists():
        raise ModelError(f"model {target}: exists already and is not overwritten")
    try:
        with new_folder(target) as unfinished:
            model.save_pretrained(unfinished)
            tokenizer.save_pretrained(unfinished)
    except OSError as error:
        raise ModelError(f"model {target} cannot be written: {error.strerror or error}") from error
    return target


def hidden_states(
    model: "PreTrainedModel",
    ids: Tensor,
    *,
    position_ids: Tensor | None = None,
    attention_mask: Tensor | None = None,
) -> Tensor:
    """Rows x width x hidden: what the head sees, after the last norm. Without a mask every row starts at its left."""
    # Positions that are given make transformers look for packed rows, so nobody gives them without need.
    output = model.base_model(
        input_ids=ids, position_ids=position_ids, attention_mask=attention_mask, use_cache=False, return_dict=True
    )
    return output.last_hidden_state


def head(model: "PreTrainedModel") -> Head:
    linear = model.get_output_embeddings()
    assert linear is not None, "a causal language model has a head"
    return Head(weight=linear.weight, bias=getattr(linear, "bias", None))  # pyright: ignore[reportArgumentType]


def _looks_like_a_folder(name: str) -> bool:
    """A hub name is "name" or "owner/name"; everything else can only be meant as a folder."""
    return name.startswith((".", "~", os.sep)) or name.count("/") > 1 or os.path.exists(name)


def _check_folder(folder: Path) -> None:
    def has(names: tuple[str, ...]) -> bool:
        return any((folder / name).is_file() for name in names)

    if not has(("config.json",)):
        raise ModelError(f"model {folder}: this folder is no model, it has no config.json")
    if not has(_WEIGHTS):
        pickled = (
            ", only pickled weights, which are never loaded: save it again as safetensors" if has(_PICKLED) else ""
        )
        raise ModelError(f"model {folder}: this folder has no model.safetensors{pickled}")
    if not has(_TOKENIZER):
        raise ModelError(f"model {folder}: this folder has no tokenizer (tokenizer.json)")


@contextmanager
def _one_sentence(name: str) -> Iterator[None]:
    """What transformers says at length, as one sentence."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[0] if lines else type(error).__name__
        if Path(name).is_dir():
            raise ModelError(f"model {name} cannot be loaded: {reason}") from error
        raise ModelError(f"model {name} is no folder here and cannot be fetched by that name: {reason}") from error


def _context(name: str, config: Any, asked: int | None) -> int:
    longest = getattr(config, "max_position_embeddings", None)
    if longest is None:
        if asked is None:
            raise ModelError(f"model {name}: its config does not say how long its context is (max_position_embeddings)")
        return asked
    if asked is not None and asked > longest:
        raise ModelError(f"model {name}: its context is {longest} tokens, and {asked} are asked for")
    return longest


def _stop_tokens(name: str, tokenizer: Any, model: Any) -> tuple[int, ...]:
    """The tokenizer's end token, and those the model was taught to end a turn with."""
    if tokenizer.eos_token_id is None:
        raise ModelError(f"model {name}: its tokenizer has no end token (eos_token), so no completion could end")
    taught = getattr(model.generation_config, "eos_token_id", None)
    others = [] if taught is None else [taught] if isinstance(taught, int) else list(taught)
    return tuple(dict.fromkeys([tokenizer.eos_token_id, *others]))


@torch.no_grad()
def _check_head(name: str, model: "PreTrainedModel") -> None:
    """Models that cap or scale their logits after the head would be trained on other log-probs than they have."""
    ids = torch.arange(min(16, model.config.vocab_size), device=model.device)[None]
    if model.get_output_embeddings() is None:
        raise ModelError(f"model {name}: it has no head over a vocabulary")
    logits = model(input_ids=ids, use_cache=False).logits.float()
    parts = head(model)
    bias = None if parts.bias is None else parts.bias.float()
    ours = torch.nn.functional.linear(hidden_states(model, ids).float(), parts.weight.float(), bias)
    scale = max(float(logits.abs().max()), 1e-6)
    # A bf16 head rounds its logits to two or three digits.
    tolerance = 1e-3 if parts.weight.dtype == torch.float32 else 0.02
    if not torch.allclose(ours / scale, logits / scale, rtol=0, atol=tolerance):
        raise ModelError(f"model {name}: its logits are not its hidden states times its head (a cap or a scale)")
