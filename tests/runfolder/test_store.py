"""The run folder, written and read back: which rows count, and what a killed run or a full disk leaves behind."""

import errno
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scalerl.errors import RunFolderError, StoreError
from scalerl.runfolder import store
from scalerl.runfolder.atomic_files import new_file, write_failure


def _write_lines(path: Path, rows: Sequence[Mapping[str, object]], tail: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + tail, encoding="utf-8")


def test_recipe_or_evals_make_a_run_folder(tmp_path: Path) -> None:
    assert not store.is_run_folder(tmp_path)
    assert not store.is_run_folder(tmp_path / "absent")
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    assert not store.is_run_folder(tmp_path)
    (tmp_path / "evals.jsonl").write_text("")
    assert store.is_run_folder(tmp_path)
    assert not store.is_run_folder(tmp_path / "evals.jsonl")


def test_highest_attempt_counts_then_the_later_row(tmp_path: Path) -> None:
    rows = [(20, 1, "val"), (0, 1, "val"), (10, 2, "val"), (10, 1, "val"), (10, 1, "test"), (0, 1, "val")]
    named = [dict(zip(("step", "attempt", "set"), row, strict=True)) for row in rows]
    named = [row | {"reward": at / 10} for at, row in enumerate([*named, {"step": 30, "set": "val"}], start=1)]
    _write_lines(tmp_path / "evals.jsonl", named)
    kept = [(row["step"], row["set"], row["reward"]) for row in store.read_evals(tmp_path)]
    # Attempt 2 went on from step 10 at the latest: the model of step 20 is gone. A row without an attempt is of none.
    assert kept == [(0, "val", 0.6), (10, "val", 0.3), (10, "test", 0.5), (30, "val", 0.7)]


def _attempts(folder: Path, metrics: dict[int, range], evals: dict[int, range]) -> None:
    """The rows of a run whose attempts made these steps."""
    for name, attempts in ((store.METRICS, metrics), (store.EVALS, evals)):
        of_set: dict[str, object] = {"set": "val"} if name == store.EVALS else {}
        rows = [{"step": step, "attempt": one, **of_set} for one, steps in attempts.items() for step in steps]
        _write_lines(folder / name, rows)


@pytest.mark.parametrize(
    "metrics, evals, trained, evaluated",
    [
        # Killed at 26 and resumed at 10: attempt 2 is at 12 and has yet to evaluate.
        ({1: range(1, 27), 2: range(11, 13)}, {1: range(0, 27, 8)}, [10, 2], [(0, 1), (8, 1)]),
        # It ends at 16, by a lower budget.
        (
            {1: range(1, 27), 2: range(11, 17)},
            {1: range(0, 27, 8), 2: range(16, 17)},
            [10, 6],
            [(0, 1), (8, 1), (16, 2)],
        ),
        # Resumed at 8, whose evaluation it repeats before its first step: that of step 16 is of a model that is gone.
        ({1: range(1, 18)}, {1: range(0, 17, 8), 2: range(8, 9)}, [8], [(0, 1), (8, 2)]),
        # Resumed before there was a checkpoint.
        ({1: range(1, 5), 2: range(1, 3)}, {1: range(0, 5, 2)}, [0, 2], [(0, 1)]),
        # A third attempt from an older checkpoint than the second.
        (
            {1: range(1, 21), 2: range(11, 31), 3: range(6, 8)},
            {1: range(0, 21, 5), 2: range(15, 31, 5)},
            [5, 0, 2],
            [(0, 1), (5, 1)],
        ),
        # Nothing came of the second before it was stopped: the first is all there is.
        ({1: range(1, 5)}, {1: range(0, 5, 2)}, [4], [(0, 1), (2, 1), (4, 1)]),
    ],
)
def test_older_attempt_ends_where_a_newer_one_resumed(
    tmp_path: Path,
    metrics: dict[int, range],
    evals: dict[int, range],
    trained: list[int],
    evaluated: list[tuple[int, int]],
) -> None:
    _attempts(tmp_path, metrics, evals)
    counted = [one for one, num in enumerate(trained, start=1) for _ in range(num)]
    assert [(row["step"], row["attempt"]) for row in store.read_metrics(tmp_path)] == [*enumerate(counted, start=1)]
    assert [(row["step"], row["attempt"]) for row in store.read_evals(tmp_path)] == evaluated
    # Nothing is lost from the files: it was spent.
    assert len((tmp_path / store.METRICS).read_text().splitlines()) == sum(map(len, metrics.values()))


def test_attempts_are_found_in_rows_written_by_append_row(tmp_path: Path) -> None:
    for attempt, step in ((1, 1), (1, 2), (1, 3), (2, 2)):
        store.append_row(tmp_path / store.METRICS, {"step": step, "attempt": attempt, "gpu_hours": math.nan})
    store.append_row(tmp_path / store.EVALS, {"step": 3, "attempt": 1, "set": "val", "reward": 0.5})
    assert [(row["step"], row["attempt"]) for row in store.read_metrics(tmp_path)] == [(1, 1), (2, 2)]
    assert store.read_evals(tmp_path) == []


def test_missing_files_read_as_empty(tmp_path: Path) -> None:
    reads = (store.read_evals, store.read_metrics, store.read_recipe, store.read_status)
    assert [read(tmp_path) for read in reads] == [[], [], None, None]


def test_recipe_and_status_are_objects(tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text('{"seed": 3}')
    (tmp_path / "status.json").write_text("[1]")
    assert store.read_recipe(tmp_path) == {"seed": 3}
    with pytest.raises(ValueError, match=r"status\.json: a JSON object is needed, not list"):
        store.read_status(tmp_path)
    (tmp_path / "recipe.json").write_text('{\n"seed": ')
    with pytest.raises(ValueError, match=r"recipe\.json, line 2: not JSON"):
        store.read_recipe(tmp_path)


@given(cut=st.integers(min_value=0, max_value=60))
def test_cut_last_line_loses_only_itself(cut: int) -> None:
    whole = [json.dumps({"step": step, "attempt": 1, "reward": 0.25}) for step in range(3)]
    text = "\n".join(whole) + "\n" + json.dumps({"step": 3, "attempt": 1, "reward": 0.125})[:cut]
    rows = [row for _, row in store.parse_lines(text, Path("evals.jsonl"))]
    assert [row["step"] for row in rows[:3]] == [0, 1, 2]
    assert len(rows) == 3 or rows[3] == {"step": 3, "attempt": 1, "reward": 0.125}


@pytest.mark.parametrize(
    "text, fault",
    [
        ('{"step": 1}\n{"step": \n{"step": 3}\n', r"evals\.jsonl, line 2: not JSON"),
        ('{"step": 1}\n[1, 2]\n', r"evals\.jsonl, line 2: a JSON object is needed, not '\[1, 2\]'"),
        ('{"step": 1}\nTraceback\n', r"evals\.jsonl, line 2: not JSON"),
        ('{"step": 1}\n{"reward": 1}\n', r"evals\.jsonl, line 2: the row has no numeric 'step'"),
        ('{"step": ', r"evals\.jsonl, line 1: not JSON"),
        ('{"step": Infinity}\n', r"evals\.jsonl, line 1: the row has no numeric 'step'"),
        (f'{{"step": 1{"0" * 400}}}\n', r"evals\.jsonl, line 1: the row has no numeric 'step'"),
        ('{"step": 1, "attempt": "2"}\n', r"evals\.jsonl, line 1: 'attempt'"),
        ('{"step": 1, "set": ["main"]}\n', r"evals\.jsonl, line 1: 'set'"),
    ],
)
def test_bad_line_is_named_in_the_error(tmp_path: Path, text: str, fault: str) -> None:
    (tmp_path / "evals.jsonl").write_text(text)
    with pytest.raises(ValueError, match=fault):
        store.read_evals(tmp_path)


def test_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, read in (("metrics.jsonl", store.read_metrics), ("status.json", store.read_status)):
        (tmp_path / name).write_bytes(b'{"step": 1}\n\xff\xfe\x00\n')
        with pytest.raises(RunFolderError, match=rf"{name} is not UTF-8 text \(byte 0xff in line 2\)"):
            read(tmp_path)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(RunFolderError, match=r"status.json cannot be read: Permission denied$"):
        store.read_status(tmp_path)


def test_removed_folder_is_named_when_a_row_is_written(tmp_path: Path) -> None:
    gone = tmp_path / "run"
    with pytest.raises(StoreError, match=rf"metrics.jsonl: the folder {gone} is gone"):
        store.append_row(gone / store.METRICS, {"step": 1})
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert write_failure(full, tmp_path / "absent/model") == "the disk is full"


def test_new_run_refuses_a_folder_in_use(tmp_path: Path) -> None:
    folder = store.create_run(tmp_path / "runs" / "a")
    assert store.create_run(folder) == folder
    store.write_json(folder / store.RECIPE, {"seed": 1})
    with pytest.raises(ValueError, match=r"already contains a run: continue it with --resume, or choose another --out"):
        store.create_run(folder)
    (tmp_path / "file").write_text("mine")
    for taken in (tmp_path, tmp_path / "file"):
        with pytest.raises(ValueError, match="already exists and is not an empty folder"):
            store.create_run(taken)
    for below in ("run", "deep/run"):
        expected = rf"{below} cannot be created: {tmp_path}/file is a file, not a folder"
        with pytest.raises(RunFolderError, match=expected):
            store.check_new(tmp_path / "file" / below)
    assert store.read_recipe(folder) == {"seed": 1}
    assert (tmp_path / "file").read_text() == "mine"


def test_run_that_was_killed_before_its_recipe_starts_anew(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(RunFolderError, match="does not exist; start it without --resume"):
        store.check_resumable(folder)
    store.create_run(folder)
    for name in ("", f".{store.RECIPE}.unfinished"):
        if name:
            (folder / name).write_text("{")
        with pytest.raises(RunFolderError, match="start it again without --resume"):
            store.check_resumable(folder)
        store.check_new(folder)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError, match=f"it has no {store.RECIPE}"):
        store.check_resumable(folder)


def test_end_is_recorded_where_the_run_has_not(tmp_path: Path) -> None:
    store.end_status(tmp_path, "failed", "killed")
    assert store.read_status(tmp_path) is None
    store.write_status(tmp_path, "running")
    store.end_status(tmp_path, "failed", "killed")
    store.end_status(tmp_path, "failed", "another reason")
    assert store.read_status(tmp_path) == {"status": "failed", "reason": "killed"}


@pytest.mark.parametrize("exists", [True, False])
def test_folder_without_write_permission_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    locked = tmp_path / "locked"
    locked.mkdir()
    # Asked and not tried: root may write into any folder.
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != locked)
    folder = locked if exists else locked / "runs" / "a"
    with pytest.raises(RunFolderError, match=rf"{folder} cannot be written: no permission to write into {locked}"):
        store.check_new(folder)
    store.check_new(tmp_path / "other" / "a")


def test_rows_round_trip_and_nonfinite_becomes_null(tmp_path: Path) -> None:
    row = {"step": 1, "attempt": 1, "loss/mean": math.nan, "num_correct": [1, 0], "deep": {"top": (-math.inf, 0.5)}}
    store.append_row(tmp_path / store.METRICS, row, sync=True)
    store.append_row(tmp_path / store.METRICS, {"step": 2, "text": "a\nb\u2028"})
    expected = row | {"loss/mean": None, "deep": {"top": [None, 0.5]}}
    assert store.read_metrics(tmp_path) == [expected, {"step": 2, "text": "a\nb\u2028"}]
    assert (tmp_path / store.METRICS).read_bytes().count(b"\n") == 2
    store.write_json(tmp_path / store.STATUS, {"status": "running", "loss": math.inf})
    store.write_json(tmp_path / store.STATUS, {"status": "done"})
    assert store.read_status(tmp_path) == {"status": "done"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "status.json"]


@given(cut=st.integers(min_value=0, max_value=200), reopened=st.booleans())
@example(cut=2 * len('{"step": 0, "attempt": 1}') + 1, reopened=True)  # two rows, the last without its newline
def test_resume_after_a_kill_keeps_every_complete_row(
    tmp_path_factory: pytest.TempPathFactory, cut: int, reopened: bool
) -> None:
    folder = tmp_path_factory.mktemp("run")
    store.write_json(folder / store.RECIPE, {})
    whole = [json.dumps({"step": step, "attempt": 1}) for step in range(5)]
    text = "\n".join(whole) + "\n"
    (folder / store.METRICS).write_text(text[:cut])
    # A row that lacks only its newline is whole.
    num_whole = sum(len("\n".join(whole[: number + 1])) <= cut for number in range(5))
    if reopened:
        store.reopen_run(folder)
        assert [row["step"] for row in store.read_metrics(folder)] == list(range(num_whole))
    store.append_row(folder / store.METRICS, {"step": 9, "attempt": 2})
    assert [row["step"] for row in store.read_metrics(folder)] == [*range(num_whole), 9]


def test_only_a_run_folder_can_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"does not contain a run to resume: it has no recipe\.json"):
        store.reopen_run(tmp_path)


@pytest.mark.parametrize(
    "number, reason", [(errno.ENOSPC, "the disk is full"), (errno.EDQUOT, "the disk is full"), (errno.EIO, "Input/out")]
)
def test_full_disk_leaves_no_partial_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, reason: str
) -> None:
    metrics, status = tmp_path / store.METRICS, tmp_path / store.STATUS
    store.append_row(metrics, {"step": 1})
    store.write_json(status, {"status": "running"})
    before = metrics.read_bytes(), status.read_bytes()
    write, room = os.write, 5

    def write_until_full(descriptor: int, data: bytes) -> int:
        nonlocal room
        if room == 0:
            raise OSError(number, os.strerror(number))
        taken = write(descriptor, data[:room])
        room -= taken
        return taken

    def attempt(call: Any, *arguments: Any) -> None:
        nonlocal room
        room = 5
        with pytest.raises(StoreError, match=rf"cannot write .*{arguments[0].name}: {reason}"):
            call(*arguments)

    monkeypatch.setattr(os, "write", write_until_full)
    attempt(store.append_row, metrics, {"step": 2})
    attempt(store.write_json, status, {"status": "done"})
    assert (metrics.read_bytes(), status.read_bytes()) == before
    # A complete last row gets the newline that it lacks, and keeps it.
    metrics.write_bytes(before[0].removesuffix(b"\n"))
    attempt(store.append_row, metrics, {"step": 2})
    assert metrics.read_bytes() == before[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "status.json"]


def test_status_can_be_written_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write_status(tmp_path, "running", "a reason that is much longer than the one that comes after it, by far")
    write, inode = os.write, (tmp_path / store.STATUS).stat().st_ino

    def write_over_only(descriptor: int, data: bytes) -> int:
        if os.fstat(descriptor).st_ino != inode:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", write_over_only)
    store.write_status(tmp_path, "failed", "full")
    assert store.read_status(tmp_path) == {"status": "failed", "reason": "full"}
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]
    with pytest.raises(StoreError, match=r"cannot write .*status\.json: the disk is full"):
        store.write_status(tmp_path / "..", "running")


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
    store.append_row(tmp_path / store.EVALS, {"step": 1, "set": "val"})
    store.write_json(tmp_path / store.RECIPE, {"seed": 1})
    assert store.read_evals(tmp_path) == [{"step": 1, "set": "val"}]
    assert store.read_recipe(tmp_path) == {"seed": 1}


def test_newer_folder_format_is_refused(tmp_path: Path) -> None:
    store.append_row(tmp_path / store.EVALS, {"step": 1, "set": "val", "reward": 0.5})
    store.write_json(tmp_path / store.STATUS, {"status": "done"})
    # Without a number, or with the number of this version, it is read.
    for written in ({}, {"format": store.FORMAT}):
        store.write_json(tmp_path / store.ENV, written)
        assert len(store.read_evals(tmp_path)) == 1
    (tmp_path / store.ENV).write_text('{"format": ')
    assert len(store.read_evals(tmp_path)) == 1
    store.write_json(tmp_path / store.ENV, {"format": store.FORMAT + 1})
    expected = rf"has the format {store.FORMAT + 1}, but this version of scalerl reads formats up to {store.FORMAT}"
    for read in (store.read_evals, store.read_metrics, store.read_recipe, store.read_status, store.reopen_run):
        with pytest.raises(RunFolderError, match=expected):
            read(tmp_path)


def test_new_file_keeps_the_old_one_when_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    store.write_text(path, "half of a character: \ud800")
    assert path.read_text(encoding="utf-8") == "half of a character: ?"
    store.write_text(path, "old \u2713")

    def fail_halfway() -> None:
        with new_file(path) as unfinished:
            unfinished.write_text("half")
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.raises(StoreError, match=r"cannot write .*page\.html: Input/output error"):
        fail_halfway()
    assert path.read_text(encoding="utf-8") == "old \u2713"
    assert list(tmp_path.iterdir()) == [path]


def test_killed_run_is_not_said_to_be_running(tmp_path: Path):
    write = f"from scalerl.runfolder import store; store.write_status({str(tmp_path)!r}, 'running'); input()"
    with subprocess.Popen([sys.executable, "-c", write], stdin=subprocess.PIPE) as process:
        while not (tmp_path / store.STATUS).is_file():
            assert process.poll() is None
            time.sleep(0.01)
        assert store.read_status(tmp_path) == {"status": "running", "reason": ""}
        process.kill()
        process.wait()
        assert store.read_status(tmp_path) == {"status": "failed", "reason": store.KILLED}
    written = json.loads((tmp_path / store.STATUS).read_text())
    *here, _, began = written["process"].split()
    store.write_json(tmp_path / store.STATUS, {**written, "process": " ".join([*here, "9" * 6000, began])})
    assert store.read_status(tmp_path) == {"status": "running", "reason": ""}, "that is no process"
    # Of a process on another machine nothing is known here.
    written["process"] = f"another-boot {written['process'].partition(' ')[2]}"
    store.write_json(tmp_path / store.STATUS, written)
    assert store.read_status(tmp_path) == {"status": "running", "reason": ""}
