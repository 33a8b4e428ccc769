"""Files of JSON lines and objects, and what a hostile folder can hold."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from scalerl.forecast.report import safe_files
from scalerl.forecast.report.safe_files import Root, json_lines, newest_objects, open_inside, read_object
from scalerl.recipe.secrets import HIDDEN


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def lines(path: Path) -> list[tuple[int, int | None]]:
    """Return the number of each line, from 1, and its step; None for a line that was skipped."""
    return [(number, None if row is None else row["step"]) for number, row in json_lines(path, Root(path.parent))]


@pytest.mark.parametrize(
    "text, expected",
    [
        ('{"step": 1}\n{"step": 2}\n', [(1, 1), (2, 2)]),
        ('{"step": 1}\n\nnot json\n{"step": 22}\n', [(1, 1), (3, None), (4, 22)]),
        ("[" * 200_000 + '\n{"step": 1}\n', [(1, None), (2, 1)]),
        # The last line may lack its end, or still be written.
        ('{"step": 1}\n{"step": 2}', [(1, 1), (2, 2)]),
        ('{"step": 1}\n{"st', [(1, 1)]),
    ],
)
def test_lines_are_numbered_and_damaged_ones_are_known(path: Path, text: str, expected: list):
    path.write_text(text)
    assert lines(path) == expected


@pytest.mark.parametrize(("most", "expected"), [(1 << 16, [333, 22, 1]), (30, [333, 22]), (20, [333]), (5, [])])
def test_the_newest_lines_are_those_at_the_end(
    path: Path, most: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(safe_files, "MAX_END", most)
    path.write_text('{"step": 1}\n\nnot json\n[2]\n{"step": 22}\n{"step": 333}')
    assert [row["step"] for row in newest_objects(path, Root(path.parent))] == expected


def test_too_long_line_is_skipped(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(safe_files, "MAX_LINE", 1 << 10)
    text = "x" * (5 << 10)
    path.write_text(f'{{"step": 1}}\n{{"text": "{text}"}}\n{{"step": 2}}\n{{"text": "{text}')
    assert lines(path) == [(1, 1), (2, None), (3, 2), (4, None)]


def test_only_regular_files_inside_the_root_are_opened(tmp_path: Path):
    secret, root = tmp_path / "secret.jsonl", tmp_path / "runs"
    secret.write_text('{"step": 1}\n')
    root.mkdir()
    (root / "link.jsonl").symlink_to(secret)
    os.mkfifo(root / "pipe.jsonl")
    (root / "folder.jsonl").mkdir()
    for name in ("link.jsonl", "pipe.jsonl", "folder.jsonl", "../secret.jsonl", "missing.jsonl"):
        assert open_inside(root / name, Root(root)) is None
        assert [*json_lines(root / name, Root(root)), *newest_objects(root / name, Root(root))] == []
        assert read_object(root / name, Root(root)) == ({}, "")


def test_nothing_outside_is_opened_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Opening a device has an effect by itself."""
    root, opened = tmp_path / "runs", []
    root.mkdir()
    (tmp_path / "outside").write_text("{}")
    (root / "link.jsonl").symlink_to(tmp_path / "outside")
    os.mkfifo(root / "pipe.jsonl")
    (root / "zero.jsonl").symlink_to("/dev/zero")
    really = os.open

    def note(name: str | Path, *flags: int, **more: Any) -> int:
        opened.append(str(name))
        return really(name, *flags, **more)

    monkeypatch.setattr(os, "open", note)
    monkeypatch.setattr(os, "supports_dir_fd", {note})
    for name in ("link.jsonl", "pipe.jsonl", "zero.jsonl"):
        assert open_inside(root / name, Root(root)) is None
    assert set(opened) <= {str(root)}


def test_replaced_folder_leads_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder becomes a link between the look at the real path and the opening."""
    root, outside = tmp_path / "runs", tmp_path / "outside"
    (root / "run").mkdir(parents=True)
    outside.mkdir()
    for folder in (root / "run", outside):
        (folder / "metrics.jsonl").write_text("{}")

    def replace(self: Root, path: Path) -> bool:
        held = os.path.realpath(path).startswith(os.path.realpath(root))
        (root / "run").rename(tmp_path / "gone")
        (root / "run").symlink_to(outside)
        return held

    monkeypatch.setattr(Root, "holds", replace)
    assert open_inside(root / "run" / "metrics.jsonl", Root(root)) is None


def test_secrets_of_others_are_not_read(path: Path):
    path.write_text(json.dumps({"gpu": "H200", "api_key": "abcdef0123456789", "more": {"url": "https://me:pw@host/"}}))
    value, _ = read_object(path, Root())
    assert value == {"gpu": "H200", "api_key": HIDDEN, "more": {"url": f"https://{HIDDEN}@host/"}}


@pytest.mark.parametrize(
    "text, fault",
    [
        ("{", ", line 1: not JSON"),
        ('{"a": ' + "[" * 900 + "]" * 900 + "}", ", line 1: not JSON (nested too deeply)"),
        ("[1]", ": a JSON object is needed, not list"),
        ('{"a": 1}', ""),
    ],
)
def test_faults_of_an_object_are_named(path: Path, text: str, fault: str):
    path.write_text(text)
    value, found = read_object(path, Root())
    assert found.startswith(f"{path}{fault}" if fault else "")
    assert value == ({} if fault else {"a": 1})
