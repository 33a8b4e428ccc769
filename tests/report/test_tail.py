"""Following a file of JSON lines: additions, cuts, restarts, and what a hostile file can hold."""

import json
import os
from pathlib import Path

import pytest

from scalerl.report import files as tails
from scalerl.report.files import Root, Tail, open_inside, read_inside


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def steps(added: tails.Added) -> list[int]:
    return [row["step"] for _, _, row in added.rows]


def test_rows_come_once_each(path: Path):
    tail = Tail(path, Root(path.parent))
    assert steps(tail.read()) == []
    path.write_text('{"step": 1}\n{"step": 2}\n')
    assert steps(tail.read()) == [1, 2]
    assert steps(tail.read()) == []
    with path.open("a") as file:
        file.write('{"step": 3}\n')
    assert steps(tail.read()) == [3]


def test_line_being_written_waits_for_its_end(path: Path):
    path.write_text('{"step": 1}\n{"st')
    tail = Tail(path, Root(path.parent))
    assert steps(tail.read()) == [1]
    with path.open("a") as file:
        file.write('ep": 2}\n')
    assert steps(tail.read()) == [2]


@pytest.mark.parametrize("last, found", [('{"step": 2}', [1, 2]), ('{"st', [1])])
def test_last_line_of_a_whole_file_may_lack_its_end(path: Path, last: str, found: list[int]):
    path.write_text(f'{{"step": 1}}\n{last}')
    tail = Tail(path, Root())
    assert steps(tail.read(is_whole=True)) == found
    assert tail.skipped == []


def test_offsets_point_at_their_lines(path: Path):
    path.write_text('{"step": 1}\n\nnot json\n{"step": 22}\n{"step": 3}\n')
    tail = Tail(path, Root(path.parent))
    for offset, number, row in tail.read().rows:
        assert json.loads(path.read_bytes()[offset:].split(b"\n")[0]) == row
        assert json.loads(path.read_bytes().split(b"\n")[number - 1]) == row
    assert tail.skipped == [3]


def test_shorter_or_replaced_file_is_read_again(path: Path):
    path.write_text('{"step": 1}\n{"step": 2}\n')
    tail = Tail(path, Root(path.parent))
    tail.read()
    path.write_text('{"step": 1}\n')
    again = tail.read()
    assert again.restarted
    assert steps(again) == [1]
    other = path.with_name("other")
    other.write_text('{"step": 7}\n{"step": 8}\n{"step": 9}\n')
    os.replace(other, path)
    assert steps(tail.read()) == [7, 8, 9]


def test_vanished_file_voids_its_rows(path: Path):
    path.write_text('{"step": 1}\n')
    tail = Tail(path, Root(path.parent))
    tail.read()
    path.unlink()
    assert tail.read().restarted
    path.write_text('{"step": 4}\n')
    assert steps(tail.read()) == [4]


def test_too_long_line_is_skipped_without_being_kept(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tails, "MAX_LINE", 1 << 20)
    with path.open("wb") as file:
        file.write(b'{"step": 1}\n{"text": "')
        for _ in range(40):
            file.write(b"x" * (1 << 20))
        file.write(b'"}\n{"step": 2}\n')
    tail = Tail(path, Root(path.parent))
    rows, reads, more = [], 0, True
    while more:
        added = tail.read()
        more = added.more
        rows += steps(added)
        reads += 1
        assert len(tail._pending) <= 2 << 20
    assert rows == [1, 2]
    assert reads == 2
    assert tail.skipped == [2]


def test_deeply_nested_line_is_skipped(path: Path):
    path.write_text("[" * 200_000 + "\n" + '{"step": 1}\n')
    tail = Tail(path, Root(path.parent))
    assert steps(tail.read()) == [1]


def test_link_out_of_the_root_is_not_opened(tmp_path: Path):
    secret = tmp_path / "secret.jsonl"
    secret.write_text('{"step": 1}\n')
    root = tmp_path / "runs"
    root.mkdir()
    (root / "metrics.jsonl").symlink_to(secret)
    assert open_inside(root / "metrics.jsonl", Root(root)) is None
    assert read_inside(root / ".." / "secret.jsonl", Root(root), 1000) is None
    assert steps(Tail(root / "metrics.jsonl", Root(root)).read()) == []


def test_link_swapped_in_later_is_not_followed(tmp_path: Path):
    secret = tmp_path / "secret.jsonl"
    secret.write_text('{"step": 1}\n{"step": 99}\n')
    root = tmp_path / "runs"
    root.mkdir()
    path = root / "metrics.jsonl"
    path.write_text('{"step": 1}\n')
    tail = Tail(path, Root(root))
    assert steps(tail.read()) == [1]
    path.unlink()
    path.symlink_to(secret)
    assert steps(tail.read()) == []


def test_pipe_and_folder_are_not_opened(tmp_path: Path):
    os.mkfifo(tmp_path / "metrics.jsonl")
    (tmp_path / "evals.jsonl").mkdir()
    for name in ("metrics.jsonl", "evals.jsonl"):
        assert steps(Tail(tmp_path / name, Root(tmp_path)).read()) == []
