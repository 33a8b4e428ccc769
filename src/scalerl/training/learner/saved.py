"""Read and write tensors in a folder of safetensors files, whole or divided by rows among ranks.

    tensors.<kind>.safetensors                 every tensor of a kind, whole
    tensors.<kind>.<rank>-of-<num>.safetensors the rows of one rank; the file's metadata says which

Files are divided as their writers were; a reader takes rows from whichever files have them. Tensors are read only when
they are accessed.
"""

import io
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scalerl.errors import CheckpointError
from scalerl.runfolder.json_text import parse_json

_FILE = re.compile(r"tensors\.(?P<kind>\w+)(\.(?P<rank>\d+)-of-(?P<num>\d+))?\.safetensors")
_ROWS = "rows"
_HEADER_ALIGNMENT = 8
_BLOCK_BYTES = 1 << 24
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Names of the format."""


def file_name(kind: str, rank: int | None = None, num: int = 1) -> str:
    """Return the name of the file for a kind of tensors; with a rank, for that rank's rows."""
    return f"tensors.{kind}.safetensors" if rank is None else f"tensors.{kind}.{rank:05d}-of-{num:05d}.safetensors"


def write_tensors(path: Path, tensors: Mapping[str, Tensor], rows: Mapping[str, tuple[int, int]] | None = None) -> int:
    """Write tensors as a safetensors file and return its CRC-32. Other threads run meanwhile.

    `rows` has, for each tensor that is a part of a larger one, its first row and the number of rows of the whole.
    Tensors on a device are copied to the host one by one. (The package's own writer copies all tensors at once, and
    its file would have to be read again for the checksum.)
    """
    # A reader may use the values in place, so wide ones come first: every value then lies at a multiple of its size.
    ordered = sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize)
    header: dict[str, Any] = {}
    if rows:
        header["__metadata__"] = {_ROWS: json.dumps({name: list(rows[name]) for name in tensors if name in rows})}
    end = 0
    for name, tensor in ordered:
        start = end
        end += tensor.nbytes
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _HEADER_ALIGNMENT)
    beginning = len(text).to_bytes(8, "little") + text
    crc = zlib.crc32(beginning)
    with path.open("wb", buffering=0) as file:
        _write_all(file, beginning)
        for _, tensor in ordered:
            crc = _write_values(file, tensor, crc)
    return crc


def _write_values(file: io.FileIO, tensor: Tensor, crc: int) -> int:
    """Write the values of a tensor; return the CRC-32 continued over them."""
    if not tensor.numel():
        return crc
    values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    for start in range(0, len(values), _BLOCK_BYTES):
        block = memoryview(values[start : start + _BLOCK_BYTES].data)
        _write_all(file, block)
        crc = zlib.crc32(block, crc)
    return crc


def _write_all(file: io.FileIO, block: "bytes | memoryview") -> None:
    """Write a whole block: an unbuffered file may write less at a time."""
    rest = memoryview(block)
    while rest:
        written = file.write(rest)
        rest = rest[written or 0 :]


class SavedKind(Mapping[str, Tensor]):
    """The tensors of one kind, by name."""

    def __init__(self, files: list[Path]) -> None:
        from safetensors import safe_open

        self._parts: dict[str, dict[int, tuple[int, Any]]] = {}
        """Number of rows and file of each part, by name and first row; a whole tensor may be in several files."""
        totals: dict[str, int] = {}
        for path in sorted(files):
            opened = safe_open(path, framework="pt")
            rows = parse_json((opened.metadata() or {}).get(_ROWS, "{}"))
            for name in opened.keys():  # noqa: SIM118 -- not a mapping
                num = (opened.get_slice(name).get_shape() or [1])[0]
                first, totals[name] = rows.get(name, (0, num))
                self._parts.setdefault(name, {})[first] = num, opened
        for name, parts in self._parts.items():
            if sum(num for num, _ in parts.values()) != totals[name]:
                raise CheckpointError(f"{files[0].parent} does not have all rows of {name}: a rank's file is missing")

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, name: str) -> Tensor:
        parts = [file.get_tensor(name) for _, (_, file) in sorted(self._parts[name].items())]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def rows(self, name: str, start: int, num: int) -> Tensor:
        """Return some rows of a tensor, reading only those."""
        end = start + num
        pieces = []
        for first, (count, file) in sorted(self._parts[name].items()):
            low = max(start, first)
            high = min(end, first + count)
            if low < high:
                pieces.append(file.get_slice(name)[low - first : high - first])
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


class SavedTensors(Mapping[str, SavedKind]):
    """All tensors in a folder, by kind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, list[Path]] = {}
        for path in folder.iterdir():
            if match := _FILE.fullmatch(path.name):
                self._files.setdefault(match["kind"], []).append(path)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._files))

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, kind: str) -> SavedKind:
        return SavedKind(self._files[kind])
