"""Read the header of a GGUF file quickly: its metadata and the place of every tensor.

    magic, version, number of tensors, number of entries
    entries       key, type, value; the vocabulary and its merges are arrays of many strings
    tensors       name, shape, type, offset
    values        from the next multiple of the alignment on

The package gguf makes an array of every string, which takes half a minute for 150,000 tokens. Here long arrays are
passed over, and `write_short_header` writes a file without them for readers that need only the other entries.
"""

import hashlib
import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from scalerl.errors import GgufError

MAGIC = b"GGUF"
_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Formats of `struct` by type of value."""
_TEXT = 8
_ARRAY = 9
_LONG_ARRAY = 256
_VERSIONS = (2, 3)
_MOST_ENTRIES = 10_000
_MOST_ELEMENTS = 3_000_000
"""Largest number of elements in all arrays of a header: large vocabularies and their merges need half of it."""
_MOST_TENSORS = 100_000
_MOST_DIMENSIONS = 4
BLOCKS = {
    "F32": (0, 1, 4),
    "F16": (1, 1, 2),
    "Q4_0": (2, 32, 18),
    "Q4_1": (3, 32, 20),
    "Q5_0": (6, 32, 22),
    "Q5_1": (7, 32, 24),
    "Q8_0": (8, 32, 34),
    "Q4_K": (12, 256, 144),
    "Q5_K": (13, 256, 176),
    "Q6_K": (14, 256, 210),
    "BF16": (30, 1, 2),
}
"""The types of tensors that can be read here: number, values in a block and bytes of a block, by name."""
_NAMES = {number: name for name, (number, _, _) in BLOCKS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """A tensor of a file."""

    kind: str
    """Name of its type in BLOCKS; "" for another type."""
    shape: tuple[int, ...]
    """As torch has it: the values of the last dimension are next to each other."""
    start: int
    """Its first byte in the file."""

    @property
    def num_bytes(self) -> int:
        _, values, size = BLOCKS[self.kind]
        return math.prod(self.shape) // values * size


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """An entry of the metadata, with the bytes that it takes in the file."""

    start: int
    end: int
    value: Any
    """None if it is a long array."""


class GgufFile:
    """The header of a GGUF file; ValueError or struct.error if the file is cut or damaged."""

    def __init__(self, path: Path, name: str = "") -> None:
        """`name` is the model's in errors. GgufError for a header that would take minutes and gigabytes to read."""
        self.path = path
        self._name = name or str(path)
        with path.open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._place = len(MAGIC)
        self._version, num_tensors, num_entries = self._read("IQQ")
        if self._version not in _VERSIONS:
            raise GgufError(f"model {self._name}: the file has version {self._version} of the format; 2 and 3 are read")
        self._check_number("tensors", num_tensors, _MOST_TENSORS)
        self._check_number("fields", num_entries, _MOST_ENTRIES)
        self._num_elements = 0
        self._entries: dict[str, _Entry] = {}
        for _ in range(num_entries):
            start = self._place
            key = self._text()
            (kind,) = self._read("I")
            value = self._value(kind)
            self._entries[key] = _Entry(start=start, end=self._place, value=value)
        self._tensors_start = self._place
        described = [self._described() for _ in range(num_tensors)]
        self._tensors_end = self._place
        self._values_start = self._aligned(self._place)
        self._described_tensors = described
        for name, tensor in self.tensors.items():
            if tensor.kind and tensor.start + tensor.num_bytes > len(self._bytes):
                raise ValueError(f"the values of {name} lie beyond its end")

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        """The entries by key, without long arrays."""
        return {key: entry.value for key, entry in self._entries.items() if entry.value is not None}

    @cached_property
    def header_hash(self) -> str:
        """SHA-256 of everything before the values, which takes seconds less than that of the file."""
        return hashlib.sha256(memoryview(self._bytes)[: self._tensors_end]).hexdigest()

    @cached_property
    def tensors(self) -> Mapping[str, GgufTensor]:
        return {
            name: GgufTensor(kind=_NAMES.get(kind, ""), shape=shape, start=self._values_start + offset)
            for name, shape, kind, offset in self._described_tensors
        }

    def values(self, tensor: GgufTensor) -> memoryview:
        """Return the bytes of a tensor."""
        return memoryview(self._bytes)[tensor.start : tensor.start + tensor.num_bytes]

    def write_short_header(self, path: Path) -> None:
        """Write a file with this header, except its long arrays, and with holes instead of values."""
        kept = [entry for entry in self._entries.values() if entry.value is not None]
        with path.open("wb") as file:
            file.write(MAGIC + struct.pack("<IQQ", self._version, len(self._described_tensors), len(kept)))
            for entry in kept:
                file.write(self._bytes[entry.start : entry.end])
            file.write(self._bytes[self._tensors_start : self._tensors_end])
            num_bytes = len(self._bytes) - self._values_start
            file.truncate(self._aligned(file.tell()) + num_bytes)

    def _check_number(self, what: str, number: int, most: int) -> None:
        if number > most:
            raise GgufError(
                f"model {self._name}: the file has more {what} than any model needs ({number:,}; at most {most:,})"
            )

    def _aligned(self, place: int) -> int:
        alignment = self.metadata.get("general.alignment", 32)
        return -(-place // alignment) * alignment

    def _read(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(f"<{layout}", self._bytes, self._place)
        self._place += struct.calcsize(f"<{layout}")
        return values

    def _text(self) -> str:
        (length,) = self._read("Q")
        start = self._place
        self._place = self._place + length
        if self._place > len(self._bytes):
            raise ValueError("a text lies beyond its end")
        return self._bytes[start : self._place].decode("utf-8", "replace")

    def _value(self, kind: int) -> Any:
        """Read a value; return None for a long array, which is passed over."""
        if kind == _TEXT:
            return self._text()
        if kind != _ARRAY:
            if kind not in _FORMATS:
                raise ValueError(f"it has a value of unknown type {kind}")
            return self._read(_FORMATS[kind])[0]
        inner, length = self._read("IQ")
        self._num_elements += length
        self._check_number("elements", self._num_elements, _MOST_ELEMENTS)
        if inner != _TEXT and inner not in _FORMATS:
            raise ValueError(f"an array of type {inner}")
        if length <= _LONG_ARRAY:
            return [self._value(inner) for _ in range(length)]
        if inner == _TEXT:
            self._pass_texts(length)
        else:
            self._place += length * struct.calcsize(f"<{_FORMATS[inner]}")
        if self._place > len(self._bytes):
            raise ValueError("an array lies beyond its end")
        return None

    def _pass_texts(self, num: int) -> None:
        length_at = struct.Struct("<Q").unpack_from
        place = self._place
        size = len(self._bytes)
        for _ in range(num):
            place += 8 + length_at(self._bytes, place)[0]
            if place > size:
                raise ValueError("a text lies beyond its end")
        self._place = place

    def _described(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._text()
        (num_dimensions,) = self._read("I")
        if num_dimensions > _MOST_DIMENSIONS:
            raise ValueError(f"its tensor {name} has {num_dimensions} dimensions")
        *sizes, kind, offset = self._read("Q" * num_dimensions + "IQ")
        return name, tuple(reversed(sizes)), kind, offset
