"""Read scalars from tensorboard event files without tensorboard: TFRecord framing and a few protobuf fields.

A record is length (uint64), crc of the length, data, crc of the data. The crc of the length is checked (it tells an
event file from any other, and a damaged one from a whole one); that of the data is not: in pure Python it would take
most of the time.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scalerl.logs.facts import Fact
from scalerl.logs.formats.protobuf import WIRE_32, WIRE_64, WIRE_BYTES, WIRE_VARINT, read_fields
from scalerl.logs.table import ATTEMPT, Table, make_table

_HEADER = struct.Struct("<QI")
_CRC_BYTES = 4
# TensorProto: data type -> (struct letter, width, field of the typed list)
_TENSOR_FLOATS = {1: ("f", 4, 5), 2: ("d", 8, 6)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    tag: str
    step: int
    wall_time: float
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFile:
    """One file's scalars; `first` and `last` are the wall times of its first and last event of any kind."""

    scalars: tuple[Scalar, ...]
    first: float
    last: float

    @property
    def tags(self) -> frozenset[str]:
        return frozenset(scalar.tag for scalar in self.scalars)

    @property
    def first_step(self) -> int:
        return min(scalar.step for scalar in self.scalars)

    @property
    def begin(self) -> float:
        """Wall time of the first scalar."""
        return min(scalar.wall_time for scalar in self.scalars)

    @property
    def end(self) -> float:
        """Wall time of the last scalar."""
        return max(scalar.wall_time for scalar in self.scalars)

    @property
    def steps(self) -> list[int]:
        """The different steps, sorted."""
        return sorted({scalar.step for scalar in self.scalars})


def read_event_files(path: Path, files: Sequence[Path]) -> Table:
    """Read the scalars by step. Sub-folders are separate runs; the files of one folder are attempts (`_attempts`)."""
    folders: dict[str, list[EventFile]] = {}
    for file in files:
        folder = file.parent.relative_to(path).as_posix() if file != path else "."
        folders.setdefault(folder, []).append(read_events(file))
    placed, facts, apart = [], [], []
    grouped = {folder: _attempts(parts) for folder, parts in folders.items()}
    has_attempts = max(map(len, grouped.values()), default=0) > 1
    for folder, attempts in grouped.items():
        for number, attempt in enumerate(attempts, start=1):
            label = {"run": folder} if len(folders) > 1 else {}
            label |= {ATTEMPT: number} if has_attempts else {}
            rows, num_superseded = _rows(attempt, label)
            placed += rows
            if num_superseded:
                facts.append(Fact(kind="event_files_continue", values={"num": num_superseded, "folder": folder}))
        if len(attempts) > 1:
            values = {
                "num": len(attempts),
                "unit": "event files" if len(attempts) == len(folders[folder]) else "attempts",
            }
            facts.append(Fact(kind="attempts", values=values | {"place": str(path / folder)}))
            apart = [ATTEMPT]
    if len(folders) > 1:
        apart = ["run", *apart]
    return make_table(path, "tensorboard", placed, apart=tuple(apart), facts=tuple(facts))


def _attempts(files: Sequence[EventFile]) -> list[list[EventFile]]:
    """Group the event files of one folder into attempts, in the order in which they began.

    A file that begins at a later step than the attempt before it continues that attempt; one that begins at the
    beginning again is a new attempt. Files that log different tags are parts of the same attempt.
    """
    attempts: list[list[EventFile]] = []
    for file in sorted((file for file in files if file.scalars), key=lambda file: file.first):
        latest = attempts[-1] if attempts else []
        file = _without_repeated_first_step(file, latest)
        tags = {scalar.tag for part in latest for scalar in part.scalars}
        begin = min((part.first_step for part in latest), default=0)
        overlaps = any(file.begin < part.end and file.tags & part.tags for part in latest)
        continues = not file.tags & tags or (file.first_step > begin and not overlaps)
        if latest and continues:
            latest.append(file)
        else:
            attempts.append([file])
    return attempts


def _without_repeated_first_step(file: EventFile, earlier: Sequence[EventFile]) -> EventFile:
    """Drop the first step from a file that evaluates it again before it continues further on."""
    seen, own = sorted({step for part in earlier for step in part.steps}), file.steps
    if len(seen) < 2 or len(own) < 2 or own[0] != seen[0]:
        return file
    continues = seen[1] < own[1] <= seen[-1] + (seen[1] - seen[0])
    kept = tuple(scalar for scalar in file.scalars if scalar.step > own[0])
    return replace(file, scalars=kept) if continues else file


def _rows(files: Sequence[EventFile], label: dict[str, Any]) -> tuple[list[tuple[str, dict[str, Any]]], int]:
    """Return (place, row) for each step of one attempt, and how many scalars a continuing file superseded."""
    steps: dict[int, dict[str, Any]] = {}
    num_superseded = 0
    for number, file in enumerate(files):
        # What an earlier file logged from the step at which a later one continued is of a model that is gone.
        ends = [later.first_step for later in files[number + 1 :] if later.tags & file.tags]
        kept = [scalar for scalar in file.scalars if not ends or scalar.step < min(ends)]
        num_superseded += len(file.scalars) - len(kept)
        for scalar in sorted(kept, key=lambda scalar: scalar.wall_time):
            row = steps.setdefault(scalar.step, {"step": scalar.step, **label})
            row |= {"wall_time": scalar.wall_time, scalar.tag: scalar.value}
    for row in steps.values():
        row["elapsed_s"] = active_seconds(files, row["wall_time"])
    return [(f"step {step}", row) for step, row in sorted(steps.items())], num_superseded


def is_event_file(head: bytes) -> bool:
    """Return whether these first bytes open a TFRecord file."""
    if len(head) < _HEADER.size:
        return False
    _, crc = _HEADER.unpack_from(head)
    return crc == _masked_crc32c(head[:8])


def read_events(path: Path) -> EventFile:
    """Read all scalars of one file; a last record that is still being written is left out."""
    data = path.read_bytes()
    scalars: list[Scalar] = []
    times: list[float] = []
    for record in _records(data, path):
        try:
            wall_time, values = _event(record)
        except (struct.error, IndexError, ValueError, UnicodeDecodeError) as fault:
            raise ValueError(f"{path}: an event cannot be decoded ({fault})") from None
        times.append(wall_time)
        scalars.extend(values)
    return EventFile(scalars=tuple(scalars), first=min(times, default=0.0), last=max(times, default=0.0))


def active_seconds(files: Sequence[EventFile], wall_time: float) -> float:
    """Return the seconds until `wall_time` in which a file was written: waiting for a restart costs no compute."""
    total, reached = 0.0, float("-inf")
    for file in sorted(files, key=lambda file: file.first):
        begin, end = max(file.first, reached), min(file.last, wall_time)
        total += max(0.0, end - begin)
        reached = max(reached, file.last)
    return total


def _records(data: bytes, path: Path) -> Iterator[memoryview]:
    view, at = memoryview(data), 0
    while at + _HEADER.size <= len(data):
        length, crc = _HEADER.unpack_from(data, at)
        if crc != _masked_crc32c(data[at : at + 8]):
            # Some file systems pad a torn write with zeros; anything else is damage, and a guess past it loses points.
            if not any(view[at:]):
                return
            raise ValueError(f"{path}: damaged at byte {at} of {len(data)} (the record's length fails its checksum)")
        begin = at + _HEADER.size
        at = begin + length + _CRC_BYTES
        if at > len(data):
            return
        yield view[begin : begin + length]


def _event(record: memoryview) -> tuple[float, list[Scalar]]:
    wall_time, step, values = 0.0, 0, []
    for field, wire, value in read_fields(record):
        if field == 1 and wire == WIRE_64:
            wall_time = struct.unpack("<d", value)[0]
        elif field == 2 and wire == WIRE_VARINT:
            step = value if value < 1 << 63 else value - (1 << 64)
        elif field == 5 and wire == WIRE_BYTES:
            values = [
                _summary_value(item) for number, kind, item in read_fields(value) if (number, kind) == (1, WIRE_BYTES)
            ]
    named = [(tag, value) for tag, value in values if value is not None]
    return wall_time, [Scalar(tag=tag, step=step, wall_time=wall_time, value=value) for tag, value in named]


def _summary_value(message: memoryview) -> tuple[str, float | None]:
    tag, scalar = "", None
    for field, wire, value in read_fields(message):
        if field == 1 and wire == WIRE_BYTES:
            tag = bytes(value).decode("utf-8")
        elif field == 2 and wire == WIRE_32:
            scalar = float(struct.unpack("<f", value)[0])
        elif field == 8 and wire == WIRE_BYTES:
            scalar = _tensor_scalar(value)
    return tag, scalar


def _tensor_scalar(message: memoryview) -> float | None:
    """Return the number in a one-element float tensor, None for any other tensor (text, histograms)."""
    fields = list(read_fields(message))
    kind = next((value for field, wire, value in fields if (field, wire) == (1, WIRE_VARINT)), 0)
    if kind not in _TENSOR_FLOATS:
        return None
    letter, width, typed_field = _TENSOR_FLOATS[kind]
    # tensor_content (field 4) and packed or single entries of the typed list hold the same little-endian bytes.
    content = b"".join(
        bytes(value) for field, wire, value in fields if field in (4, typed_field) and wire != WIRE_VARINT
    )
    return float(struct.unpack(f"<{letter}", content)[0]) if len(content) == width else None


def _crc_table() -> tuple[int, ...]:
    table = []
    for entry in range(256):
        for _ in range(8):
            entry = (entry >> 1) ^ (0x82F63B78 if entry & 1 else 0)
        table.append(entry)
    return tuple(table)


_CRC_TABLE = _crc_table()


def _masked_crc32c(data: bytes) -> int:
    """Return the CRC-32C, rotated and offset as TFRecord stores it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
