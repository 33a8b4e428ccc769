"""Load and save causal language models, and split them into body and head.

A name is a Hugging Face folder, a hub name, a GGUF file, or a model that does not need the hub: "tiny-base" (sums),
"tiny-code-base" (sums and small programs) and "tiny-tools-base" (sums, now and then with a calculator), which are
embedded, and "smollm2-135m", from a package. Only safetensors and GGUF weights are read, because loading a pickle runs
code. Nothing here depends on the model family; the one assumption (logits = hidden states x head) is checked on
loading.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from scalerl.atomic_files import new_folder
from scalerl.config.suggest import did_you_mean
from scalerl.errors import ModelError
from scalerl.models.gguf import SMOLLM2, gguf_folder, smollm2_folder
from scalerl.store import RECIPE

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

EMBEDDED = ("tiny-base", "tiny-code-base", "tiny-tools-base")
ATTENTION_PATTERNS = frozenset({"full_attention", "sliding_attention"})
"""Kinds of layers, as config.json names them, that engines and learner compute rightly."""
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
_ANSWER_S = 60.0  # as long as the hub's own client waits for an answer on its second attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model and what is needed to sample from it."""

    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerBase"
    stop_tokens: tuple[int, ...]
    """A completion ends with one of these; the tokenizer's own end token first."""
    context: int
    """Largest number of tokens of a prompt and its completion together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The layer from hidden states to logits; in a tied model, the weight is the embedding."""

    weight: Tensor
    bias: Tensor | None


def load_model(
    path: str | os.PathLike[str],
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    context: int | None = None,
    trust_remote_code: bool = False,
) -> LoadedModel:
    """Load the model of this name (see above); `context` is the smallest context that is acceptable.

    Python code that comes with a model runs only with `trust_remote_code`.
    """
    name = os.fspath(path)
    source = _source(name)
    # After the name was checked: this import takes seconds.
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    with _short_errors(name, source):
        config = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code)
    _check_family(name, config)
    with _short_errors(name, source):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source,
            dtype=dtype,
            use_safetensors=True,
            attn_implementation="sdpa",
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            # Not left out: then transformers would ask on a terminal.
            trust_remote_code=trust_remote_code,
        )
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
    model, report = loaded
    _check_weights(name, report)
    longest = _context(name, model.config, context)
    stop_tokens = _stop_tokens(name, tokenizer, model)
    model.to(torch.device(device)).eval()  # pyright: ignore[reportArgumentType]
    _check_head(name, model)
    return LoadedModel(model=model, tokenizer=tokenizer, stop_tokens=stop_tokens, context=longest)


def load_config(path: str | os.PathLike[str], *, trust_remote_code: bool = False) -> Any:
    """Load only the configuration of the model of this name; a folder needs no weights for that."""
    name = os.fspath(path)
    folder = Path(name).expanduser()
    source = str(folder) if (folder / "config.json").is_file() else _source(name)
    from transformers import AutoConfig

    with _short_errors(name, source):
        config = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code)
    _check_family(name, config)
    return config


def load_tokenizer(path: str | os.PathLike[str], *, trust_remote_code: bool = False) -> "PreTrainedTokenizerBase":
    """Load only the tokenizer of the model of this name."""
    name = os.fspath(path)
    source = _source(name)
    from transformers import AutoTokenizer

    with _short_errors(name, source):
        return AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)


def model_folder(name: str) -> Path:
    """Return the folder on this machine with the weights of the model of this name; a hub name is downloaded first."""
    source = _source(name)
    if Path(source).is_dir():
        return Path(source)
    from huggingface_hub import snapshot_download

    with _short_errors(name, source):
        return Path(snapshot_download(source, allow_patterns=["*.safetensors", "*.json"]))


def name_elsewhere(path: str) -> str:
    """Return the name of a model for a process with another working folder: local files by their absolute path.

    Links are kept: where they lead may differ from node to node.
    """
    local = Path(path).expanduser()
    return path if path in (*EMBEDDED, SMOLLM2) or not local.exists() else str(local.absolute())


def save_model(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", folder: str | os.PathLike[str]) -> Path:
    """Write a folder that load_model, transformers and vLLM can read, completely or not at all; never overwrite one."""
    target = Path(folder)
    if target.exists():
        raise ModelError(f"model {target}: already exists and is not overwritten")
    with new_folder(target, failures=(SafetensorError,)) as unfinished:
        model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
    return target


def hidden_states(model: "PreTrainedModel", ids: Tensor) -> Tensor:
    """Return the head's inputs, [rows, width, hidden], after the last norm. Rows start at the left."""
    return model.base_model(input_ids=ids, use_cache=False, return_dict=True).last_hidden_state


def head(model: "PreTrainedModel") -> Head:
    """Return the model's head; its tensors are shared, not copied."""
    linear = model.get_output_embeddings()
    assert linear is not None, "a causal language model has a head"
    return Head(weight=linear.weight, bias=getattr(linear, "bias", None))  # pyright: ignore[reportArgumentType]


def _source(name: str) -> str:
    """Return what transformers loads for a name: a folder, or a hub name."""
    if name in EMBEDDED:
        return str(files("scalerl") / "assets" / name)
    if name == SMOLLM2:
        return str(smollm2_folder())
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        return str(gguf_folder(path))
    if path.is_dir():
        _check_folder(path)
        return str(path)
    if _looks_like_a_folder(name):
        what = "is a file" if path.exists() else "does not exist"
        raise ModelError(f"model {name} {what}: give a model folder, a hub name or a .gguf file")
    return _hub_source(name)


def _looks_like_a_folder(name: str) -> bool:
    """Return whether a name can only mean a folder; a hub name is "name" or "owner/name"."""
    return name.startswith((".", "~", os.sep)) or name.count("/") > 1 or os.path.exists(name)


def _hub_source(name: str) -> str:
    """Return the name itself, or if the hub cannot be reached, the folder that an earlier download left.

    Without this check, transformers would try to reach an unreachable hub six times for each of many files.
    """
    from huggingface_hub import constants, hf_hub_url, is_offline_mode, try_to_load_from_cache

    with _short_errors(name, name):
        url = hf_hub_url(name, "config.json")
    failure = None if is_offline_mode() else _connection_failure(url)
    if failure is None:
        return name
    kept = try_to_load_from_cache(name, "config.json")
    if not isinstance(kept, str):
        raise ModelError(
            f"model {name} is not a folder here and cannot be downloaded by that name: {constants.ENDPOINT} cannot be "
            f"reached ({failure}), and there is no earlier download{did_you_mean(name, [*EMBEDDED, SMOLLM2])}"
        )
    _check_folder(Path(kept).parent)
    return str(Path(kept).parent)


def _connection_failure(url: str) -> str | None:
    """Return why the server cannot be reached, or None if it answers anything. Slow answers are waited for."""
    from huggingface_hub import constants, get_session
    from huggingface_hub.errors import HTTPError  # pyright: ignore[reportPrivateImportUsage]

    seconds = constants.HF_HUB_ETAG_TIMEOUT
    try:
        get_session().head(url, follow_redirects=False, timeout=(seconds, _ANSWER_S, _ANSWER_S, _ANSWER_S))
    except HTTPError as error:
        return _first_line(error)
    return None


def _check_folder(folder: Path) -> None:
    def has(names: tuple[str, ...]) -> bool:
        return any((folder / name).is_file() for name in names)

    if not has(("config.json",)):
        is_run = (folder / RECIPE).is_file()
        hint = f"; it is a run: scalerl export {folder} --out MODEL makes a model of it" if is_run else ""
        raise ModelError(f"model {folder}: this folder is not a model, it has no config.json{hint}")
    if not has(_WEIGHTS):
        pickled = (
            ", only pickled weights, which are never loaded: save it again as safetensors" if has(_PICKLED) else ""
        )
        raise ModelError(f"model {folder}: this folder has no model.safetensors{pickled}")
    if not has(_TOKENIZER):
        raise ModelError(f"model {folder}: this folder has no tokenizer (tokenizer.json)")


@contextmanager
def _short_errors(name: str, source: str) -> Iterator[None]:
    """Turn errors of transformers into a ModelError of one sentence."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, ValueError, KeyError, ImportError, SafetensorError) as error:
        reason = _first_line(error)
        if "trust_remote_code" in str(error):
            raise ModelError(
                f"model {name} comes with Python code of its own, which is not run: read it, and "
                f"say --trust-remote-code if you trust it (trust_remote_code=True in Python)"
            ) from error
        if Path(source).is_dir():
            if (damaged := _damaged_file(Path(source))) is not None:
                raise ModelError(f"model {name}: {damaged} is cut or damaged: copy or download it again") from error
            if reason.startswith("Unrecognized configuration class"):
                reason = "its architecture (model_type in config.json) is not that of a causal language model"
            raise ModelError(f"model {name} cannot be loaded: {reason}") from error
        raise ModelError(
            f"model {name} is not a folder here and cannot be downloaded by that name: {reason}"
        ) from error


def _damaged_file(folder: Path) -> str | None:
    """Return the name of the first file of a model that cannot be read as what it is; None if all can."""
    from safetensors import safe_open

    for path in (*sorted(folder.glob("*.json")), *sorted(folder.glob("*.safetensors"))):
        try:
            if path.suffix == ".json":
                json.loads(path.read_text(encoding="utf-8"))
            else:
                with safe_open(path, framework="pt"):
                    pass
        except (OSError, ValueError, SafetensorError):
            return path.name
    return None


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _check_family(name: str, config: Any) -> None:
    """Raise ModelError for models that would be loaded, counted or trained wrongly, before their weights are read."""
    text = config.get_text_config()
    if text is not config:
        raise ModelError(
            f"model {name} is a {config.model_type} model, whose language model is one part of several (text_config): "
            f"such models are not supported; a checkpoint of the language model alone may be"
        )
    if other := sorted(set(getattr(config, "layer_types", None) or ()) - ATTENTION_PATTERNS):
        raise ModelError(
            f"model {name} is a {config.model_type} model with layers of {other[0]}, which is not supported: only "
            f"{' and '.join(sorted(ATTENTION_PATTERNS))} are"
        )


def _check_weights(name: str, report: Mapping[str, Any]) -> None:
    """Raise ModelError for missing weights or wrong shapes, which transformers would leave random."""
    if report["missing_keys"]:
        raise ModelError(f"model {name}: its files have no weight {min(report['missing_keys'])}")
    if report["mismatched_keys"]:
        key, actual, expected = min(report["mismatched_keys"])
        raise ModelError(
            f"model {name}: its weight {key} has shape {tuple(actual)}, but its config needs {tuple(expected)}"
        )


def _context(name: str, config: Any, asked: int | None) -> int:
    longest = getattr(config, "max_position_embeddings", None)
    if longest is None:
        if asked is None:
            raise ModelError(f"model {name}: its config does not say how long its context is (max_position_embeddings)")
        return asked
    if asked is not None and asked > longest:
        raise ModelError(f"model {name}: its context is {longest} tokens, but {asked} are needed")
    return longest


def _stop_tokens(name: str, tokenizer: Any, model: Any) -> tuple[int, ...]:
    """Return the tokenizer's end token, those of the generation config, and the one that ends a turn of chat."""
    if tokenizer.eos_token_id is None:
        raise ModelError(f"model {name}: its tokenizer has no end token (eos_token), so no completion could end")
    configured = getattr(model.generation_config, "eos_token_id", None)
    others = [] if configured is None else [configured] if isinstance(configured, int) else list(configured)
    return tuple(dict.fromkeys([tokenizer.eos_token_id, *others, *turn_end(tokenizer)]))


def turn_end(tokenizer: Any) -> list[int]:
    """Return the special token that follows an answer in the chat template; not every tokenizer names it."""
    from jinja2 import TemplateError

    if not tokenizer.chat_template:
        return []
    answer = "An answer."
    turns = [{"role": "user", "content": "A question?"}, {"role": "assistant", "content": answer}]
    try:
        text = tokenizer.apply_chat_template(turns, tokenize=False)
    except (TemplateError, ValueError):
        return []
    after = tokenizer(text.rpartition(answer)[2].lstrip(), add_special_tokens=False)["input_ids"][:1]
    return [token for token in after if token in tokenizer.added_tokens_decoder]


@torch.no_grad()
def _check_head(name: str, model: "PreTrainedModel") -> None:
    """Raise ModelError if the logits are not hidden states x head, as in models that cap or scale them."""
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
