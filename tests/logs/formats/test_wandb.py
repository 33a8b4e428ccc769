"""wandb's files, written here byte by byte as its data store writes them."""

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from log_texts import rising, verl

from scalerl.errors import InputError
from scalerl.logs.formats import read_table, read_tables
from scalerl.logs.series import Selection, series_from

BLOCK = 32768


def _varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _history(row: dict[str, Any], step: int) -> bytes:
    items = [_field(1, _field(1, key.encode()) + _field(16, json.dumps(value).encode())) for key, value in row.items()]
    return _field(2, b"".join(items) + _field(2, _varint(1 << 3) + _varint(step)))


def _log(records: list[bytes]) -> bytes:
    """Frame records as LevelDB does: split at blocks of 32 KiB, each part with a checksum, a length and a type."""
    data = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
    for record in records:
        first = True
        while True:
            left = BLOCK - len(data) % BLOCK
            if left < 7:
                data += bytes(left)
                left = BLOCK
            part, record = record[: left - 7], record[left - 7 :]
            kind = (1 if first else 4) if not record else (2 if first else 3)
            data += struct.pack("<IHB", zlib.crc32(part, zlib.crc32(bytes([kind]))), len(part), kind) + part
            first = False
            if not record:
                break
    return data


def _write(folder: Path, rewards: list[float], name: str = "") -> Path:
    folder.mkdir(parents=True)
    run = _field(17, _field(1, b"abc123") + (_field(8, name.encode()) if name else b""))
    table = {"_type": "table-file", "path": "x" * 40_000}
    rows = [
        _history({"_step": step, "_runtime": 36.0 * step, "val/acc": reward, "table": table}, step)
        for step, reward in enumerate(rewards, start=1)
    ]
    path = folder / "run-abc123.wandb"
    path.write_bytes(_log([run, *rows]))
    return path


def test_history_is_read_across_blocks(tmp_path: Path) -> None:
    rewards = rising(10)
    path = _write(tmp_path / "offline-run-1-abc123", rewards)
    for given in (path, path.parent):
        table = read_table(given)
        assert (table.kind, table.y, table.x) == ("wandb", "val/acc", "hours")
        assert [(row["_step"], row["val/acc"]) for row in table.rows] == list(enumerate(rewards, start=1))


def test_cut_wandb_file_loses_its_last_row_only(tmp_path: Path) -> None:
    path = _write(tmp_path / "run", rising(10))
    path.write_bytes(path.read_bytes()[:-50])
    assert len(read_table(path).rows) == 9


def test_runs_of_a_wandb_folder_are_separate_curves(tmp_path: Path) -> None:
    for number, name in enumerate(("cispo", "grpo")):
        _write(tmp_path / "wandb" / f"offline-run-{number}-abc", rising(10), name)
    for folder in (tmp_path, tmp_path / "wandb"):
        assert [series.name for series in series_from(read_tables([folder]), Selection())] == ["cispo", "grpo"]


def test_console_output_stands_in_for_an_empty_history(tmp_path: Path) -> None:
    path = _write(tmp_path / "wandb/run-1", [])
    with pytest.raises(InputError, match="holds no logged values yet"):
        read_table(path.parent)
    (path.parent / "files").mkdir()
    (path.parent / "files/output.log").write_text(verl(rising(8)))
    assert (read_table(path.parent).kind, len(read_table(path.parent).rows)) == ("console", 8)
    path.unlink()
    assert len(read_table(path.parent).rows) == 8
