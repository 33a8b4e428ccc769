"""Load and save causal language models, and split them into body and head.

A name is a Hugging Face folder, a hub name, a GGUF file, or a model that does not need the hub: "tiny-base" (sums),
"tiny-code-base" (sums and small programs) and "tiny-tools-base" (sums, now and then with a calculator), which are
embedded, and "smollm2-135m", from a package. Only safetensors and GGUF weights are read, because loading a pickle runs
code. Nothing here depends on the model family; the only assumption (logits = hidden states x head) is checked when a
model is loaded.
"""

import functools
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from scalerl.errors import ModelError, first_line
from scalerl.recipe.suggest import did_you_mean
from scalerl.runfolder.atomic_files import new_folder
from scalerl.runfolder.json_text import parse_json
from scalerl.runfolder.store import RECIPE
from scalerl.training.models.gguf import (
    SMOLLM2,
    check_num_layers,
    gguf_folder,
    gguf_path,
    has_known_weights,
    load_weights,
)
from scalerl.training.models.nf4 import quantise_layers
from scalerl.training.models.template import rendered

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

EMBEDDED = ("tiny-base", "tiny-code-base", "tiny-tools-base")
ATTENTION_PATTERNS = frozenset({"full_attention", "sliding_attention"})
"""Kinds of layers, by their names in config.json, that engines and learner support."""
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_LARGEST_CONFIG = 2**22
"""Largest number of bytes of a config.json; usual ones have a few thousand."""
_WEIGHTS_PER_BYTE = 2
"""Largest number of weights in a byte of a file: no format here has fewer than four bits for each."""
_NUMBER_OF_LAYER = re.compile(r"\.\d+\.")
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
_SMALL_FILES = ("*.json", "*.txt", "*.model", "*.jinja", "*.py")
"""Files of a hub model besides its weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model with everything needed to sample from it."""

    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerBase"
    stop_tokens: tuple[int, ...]
    """Tokens that end a completion; the tokenizer's end token is the first."""
    context: int
    """Largest number of tokens in a prompt and its completion together."""
    device: torch.device
    """The device that computes; a learner may keep the weights in host memory."""


def load_model(
    path: str | os.PathLike[str],
    *,
    dtype: torch.dtype | None,
    device: torch.device | str,
    context: int | None = None,
    trust_remote_code: bool = False,
    bits: int = 16,
) -> LoadedModel:
    """Load a model by name (see above); it must have at least this `context`.

    Without a `dtype`, weights have the dtype of the files, bf16 or FP32. With 4 `bits`, the linear layers except the
    head are rounded to NF4 one by one, so that the device never holds all of them unrounded. Python code that comes
    with a model runs only with `trust_remote_code`.
    """
    name = os.fspath(path)
    device = torch.device(device)
    packed = gguf_path(name)
    is_known = packed is not None and has_known_weights(packed)
    folder = model_folder(name, has_weights=not is_known)
    config = _config(name, folder, trust_remote_code)
    if not is_known:
        _check_size(name, folder, config, trust_remote_code)
    # Import this after checking the name, because it takes seconds.
    from transformers import AutoTokenizer

    with _short_errors(name, folder):
        if packed is not None and is_known:
            # Rounding to 4 bits begins on the CPU.
            place = device if bits == 16 else torch.device("cpu")
            model = load_weights(packed, name, dtype=dtype or torch.float32, device=place)
        else:
            model = _read_folder(name, folder, dtype, trust_remote_code=trust_remote_code)
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    longest = _context(name, config, context)
    stop_tokens = _stop_tokens(name, tokenizer, model)
    put_on_device(model, device, bits=bits)
    with _short_errors(name, folder):
        _check_head(name, model)
    return LoadedModel(model=model, tokenizer=tokenizer, stop_tokens=stop_tokens, context=longest, device=model.device)


def _read_folder(name: str, folder: Path, dtype: torch.dtype | None, *, trust_remote_code: bool) -> "PreTrainedModel":
    """Read the model of a folder to the CPU."""
    from transformers import AutoModelForCausalLM

    loaded: Any = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=dtype or "auto",
        use_safetensors=True,
        attn_implementation="sdpa",
        output_loading_info=True,
        ignore_mismatched_sizes=True,
        # Always pass this; otherwise transformers would ask on the terminal.
        trust_remote_code=trust_remote_code,
    )
    model, report = loaded
    _check_weights(name, report, names=model.state_dict().keys())
    return model


def put_on_device(model: "PreTrainedModel", device: torch.device, *, bits: int = 16) -> None:
    """Move a loaded model to a device, in evaluation mode; for `bits` see load_model."""
    if model.dtype == torch.float16:
        # Neither the learner nor the head's products support this dtype.
        model.float()
    if bits == 4:
        quantise_layers(model, device)
    model.to(device).eval()  # pyright: ignore[reportArgumentType]


def load_config(path: str | os.PathLike[str], *, trust_remote_code: bool = False) -> Any:
    """Load only the configuration of a model; a folder needs no weights for this."""
    name = os.fspath(path)
    return _config(name, model_folder(name, has_weights=False), trust_remote_code)


def _config(name: str, folder: Path, trust_remote_code: bool) -> Any:
    from transformers import AutoConfig

    with _short_errors(name, folder):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    _check_family(name, config)
    return config


def load_tokenizer(path: str | os.PathLike[str], *, trust_remote_code: bool = False) -> "PreTrainedTokenizerBase":
    """Load only the tokenizer of a model."""
    name = os.fspath(path)
    folder = model_folder(name, has_weights=False)
    from transformers import AutoTokenizer

    with _short_errors(name, folder):
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)


def model_folder(name: str, *, has_weights: bool = True) -> Path:
    """Return the local folder of a model; a model of the hub is downloaded first.

    Without `has_weights`, only the other files are downloaded.
    """
    if name in EMBEDDED:
        return Path(str(files("scalerl") / "assets" / name))
    if (packed := gguf_path(name)) is not None:
        return gguf_folder(packed, name, has_weights=has_weights)
    path = Path(name).expanduser()
    if path.is_dir():
        return _checked(path, has_weights)
    # A hub name is "name" or "owner/name".
    if path.exists() or name.startswith((".", "~", os.sep)) or name.count("/") > 1:
        what = "is a file" if path.exists() else "does not exist"
        raise ModelError(f"model {name} {what}: give a model folder, a hub name or a .gguf file")
    patterns: list[str] = list(_SMALL_FILES)
    if has_weights:
        patterns.append("model*.safetensors")
    return _checked(_downloaded(name, patterns), has_weights)


def _downloaded(name: str, patterns: list[str]) -> Path:
    """Download a hub model and return its folder; if the hub cannot be reached, use an earlier download."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HTTPError  # pyright: ignore[reportPrivateImportUsage]

    download = functools.partial(snapshot_download, name, allow_patterns=patterns, ignore_patterns="*/*")
    try:
        try:
            return Path(download())
        except HTTPError:
            return Path(download(local_files_only=True))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"model {name} is not a folder here and cannot be downloaded by that name: {first_line(error)}"
            f"{did_you_mean(name, [*EMBEDDED, SMOLLM2])}"
        ) from error


def name_elsewhere(path: str) -> str:
    """Return the name of a model for processes with another working folder; local paths become absolute.

    Links are not resolved, because their targets may differ between nodes.
    """
    local = Path(path).expanduser()
    return path if path in (*EMBEDDED, SMOLLM2) or not local.exists() else str(local.absolute())


def save_model(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", folder: str | os.PathLike[str]) -> Path:
    """Write a folder for load_model, transformers and vLLM, completely or not at all; never overwrite one."""
    target = Path(folder)
    if target.exists():
        raise ModelError(f"model {target} already exists and is not overwritten")
    with new_folder(target, failures=(SafetensorError,)) as unfinished:
        model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
    return target


def hidden_states(model: "PreTrainedModel", ids: Tensor) -> Tensor:
    """Return the hidden states after the last norm, [rows, width, hidden]. Rows are padded on the right."""
    return model.base_model(input_ids=ids, use_cache=False, return_dict=True).last_hidden_state


def head(model: "PreTrainedModel") -> torch.nn.Linear:
    """Return the layer from hidden states to logits; in a tied model, its weight is the embedding."""
    linear: Any = model.get_output_embeddings()
    return linear


def _checked(folder: Path, has_weights: bool) -> Path:
    """Return the folder if it has the files of a model; ModelError names the first missing file."""

    def has(names: tuple[str, ...]) -> bool:
        return any((folder / name).is_file() for name in names)

    if not has(("config.json",)):
        is_run = (folder / RECIPE).is_file()
        hint = f"; it is a run: make a model with scalerl export {folder} --out MODEL" if is_run else ""
        raise ModelError(f"model {folder}: this folder is not a model: it has no config.json{hint}")
    _check_num_layers(folder)
    if has_weights and not has(_WEIGHTS):
        pickled = ", only pickled weights, which are never loaded: save them as safetensors" if has(_PICKLED) else ""
        raise ModelError(f"model {folder}: this folder has no model.safetensors{pickled}")
    if has_weights and not has(_TOKENIZER):
        raise ModelError(f"model {folder}: this folder has no tokenizer (tokenizer.json)")
    return folder


@contextmanager
def _short_errors(name: str, folder: Path) -> Iterator[None]:
    """Turn errors of transformers into a ModelError of one sentence."""
    try:
        yield
    except ModelError:
        raise
    # A stranger's files may raise anything in there.
    except Exception as error:
        reason = f"cannot be loaded: {first_line(error)}"
        if "trust_remote_code" in str(error):
            reason = (
                "comes with its own Python code, which is not run: read it, and add --trust-remote-code if you trust "
                "it (trust_remote_code=True in Python)"
            )
        elif (damaged := _damaged_file(folder)) is not None:
            reason = f"cannot be loaded: {damaged} is truncated or damaged: copy or download it again"
        elif "Unrecognized configuration class" in reason:
            reason = "cannot be loaded: its model_type (config.json) is not that of a causal language model"
        raise ModelError(f"model {name} {reason}") from error


def _damaged_file(folder: Path) -> str | None:
    """Return the name of the first damaged file of a model; None if all files can be read."""
    from safetensors import safe_open

    for path in (*sorted(folder.glob("*.json")), *sorted(folder.glob("*.safetensors"))):
        try:
            if path.suffix == ".json":
                parse_json(path.read_text(encoding="utf-8"))
            else:
                with safe_open(path, framework="pt"):
                    pass
        except (OSError, ValueError, SafetensorError):
            return path.name
    return None


def _check_num_layers(folder: Path) -> None:
    """Raise ModelError for a config with more layers than any model has: transformers would build each of them."""
    path = folder / "config.json"
    size = path.stat().st_size
    if size > _LARGEST_CONFIG:
        raise ModelError(f"model {folder}: its config.json has {size:,} bytes, which no model needs")
    try:
        config = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        # Whoever loads it says what is wrong with it.
        return
    if isinstance(config, dict):
        check_num_layers(str(folder), [number for key, number in _numbers(config) if "layer" in key])


def _numbers(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the names and numbers of a config and of its parts."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _numbers(value)
        elif isinstance(value, int | float):
            yield key, value


def _check_family(name: str, config: Any) -> None:
    """Raise ModelError for unsupported model families, before weights are read."""
    text = config.get_text_config()
    if getattr(text, "num_hidden_layers", 1) < 1:
        raise ModelError(f"model {name}: its config says that it has {text.num_hidden_layers:,} layers")
    if text is not config:
        raise ModelError(
            f"model {name} is a {config.model_type} model, which has other parts than a language model (text_config) "
            f"and is not supported; a checkpoint of its language model alone may be"
        )
    if other := sorted(set(getattr(config, "layer_types", None) or ()) - ATTENTION_PATTERNS):
        raise ModelError(
            f"model {name} is a {config.model_type} model with layers of {other[0]}, which are not supported: only "
            f"{' and '.join(sorted(ATTENTION_PATTERNS))} are"
        )


def _check_size(name: str, folder: Path, config: Any, trust_remote_code: bool) -> None:
    """Raise ModelError for a config of more weights than its files can have: transformers would make up the others."""
    from transformers import AutoModelForCausalLM

    with _short_errors(name, folder):
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
        needed = sum(weight.numel() for weight in model.parameters())
        num_bytes = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        if needed > _WEIGHTS_PER_BYTE * num_bytes:
            raise ValueError(f"its config describes {needed:,} weights, but its files have {num_bytes:,} bytes")


def _check_weights(name: str, report: Mapping[str, Any], names: Collection[str]) -> None:
    """Raise ModelError for missing weights or wrong shapes, which transformers would leave random, and for layers that
    it would leave out; `names` are the weights of the model."""
    if report["missing_keys"]:
        raise ModelError(f"model {name}: its files have no weight {min(report['missing_keys'])}")
    if report["mismatched_keys"]:
        key, actual, expected = min(report["mismatched_keys"])
        raise ModelError(
            f"model {name}: its weight {key} has shape {tuple(actual)}, but its config needs {tuple(expected)}"
        )
    for key in sorted(report["unexpected_keys"]):
        if _in_first_layer(key) in names:
            raise ModelError(f"model {name}: its files have a weight {key}, but its config has fewer layers")


def _in_first_layer(key: str) -> str:
    """Return the name that a weight of a layer has in the first layer; other names have no number."""
    return _NUMBER_OF_LAYER.sub(".0.", key, count=1)


def _context(name: str, config: Any, asked: int | None) -> int:
    longest = getattr(config, "max_position_embeddings", None)
    if longest is None:
        if asked is None:
            raise ModelError(f"model {name}: its config does not give the context (max_position_embeddings)")
        return asked
    if asked is not None and asked > longest:
        raise ModelError(f"model {name}: its context is {longest} tokens, but {asked} are needed")
    return longest


def _stop_tokens(name: str, tokenizer: Any, model: Any) -> tuple[int, ...]:
    """Return the end tokens of the tokenizer, of the generation config and of a turn of a chat."""
    if tokenizer.eos_token_id is None:
        raise ModelError(f"model {name}: its tokenizer has no end token (eos_token), so completions could not end")
    configured = getattr(model.generation_config, "eos_token_id", None)
    if isinstance(configured, int):
        configured = [configured]
    # Others cannot be sampled.
    sampled = [token for token in configured or () if token in range(model.config.vocab_size)]
    return tuple(dict.fromkeys([tokenizer.eos_token_id, *sampled, *turn_end(tokenizer)]))


def turn_end(tokenizer: Any) -> list[int]:
    """Return the special token that the chat template writes after an answer, if any."""
    if not tokenizer.chat_template:
        return []
    answer = "An answer."
    turns = [{"role": "user", "content": "A question?"}, {"role": "assistant", "content": answer}]
    try:
        text = rendered(tokenizer, turns)
    except ModelError:
        raise
    # It may refuse these turns, and code of a stranger's may raise anything.
    except Exception:
        return []
    after = tokenizer(text.rpartition(answer)[2].lstrip(), add_special_tokens=False)["input_ids"][:1]
    return [token for token in after if token in tokenizer.added_tokens_decoder]


@torch.no_grad()
def _check_head(name: str, model: "PreTrainedModel") -> None:
    """Raise ModelError if logits differ from hidden states x head, as in models that cap or scale them."""
    ids = torch.arange(min(16, model.config.vocab_size), device=model.device)[None]
    if not isinstance(parts := model.get_output_embeddings(), torch.nn.Linear):
        raise ModelError(f"model {name}: it has no head over a vocabulary")
    logits = model(input_ids=ids, use_cache=False).logits.float()
    bias = None if parts.bias is None else parts.bias.float()
    expected = torch.nn.functional.linear(hidden_states(model, ids).float(), parts.weight.float(), bias)
    scale = max(float(logits.abs().max()), 1e-6)
    # A bf16 head rounds logits to two or three digits.
    tolerance = 1e-3 if parts.weight.dtype == torch.float32 else 0.02
    if not torch.allclose(expected / scale, logits / scale, rtol=0, atol=tolerance):
        raise ModelError(f"model {name}: its logits are not hidden states times head (they are capped or scaled)")
