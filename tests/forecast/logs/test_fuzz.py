"""Damaged and hostile logs: every reader ends in a sentence, soon, and without filling the memory."""

import gzip
import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import log_fuzz
import pytest
from read_logs import fault, read, write

from scalerl.forecast.report import words as sentences

MAX_MEGABYTES = 500


@pytest.mark.parametrize("num", [98, pytest.param(10_000, marks=pytest.mark.slow)])
def test_mutated_logs_end_in_a_sentence(tmp_path: Path, num: int) -> None:
    command = [sys.executable, log_fuzz.__file__, str(tmp_path), str(num)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    assert not result["faults"]
    assert result["megabytes"] < MAX_MEGABYTES


# Attacks that were made


def bomb(folder: Path) -> Path:
    return write(folder / "bomb.csv.gz", gzip.compress(b"step,reward\n" + b"1,0.5\n" * 12_000_000, compresslevel=1))


def endless_view(folder: Path) -> Path:
    path = folder / "view.db"
    with sqlite3.connect(path) as database:
        database.execute(
            "CREATE VIEW metrics AS WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n) "
            "SELECT id, 'r' AS run_name, id AS step, '{}' AS metrics FROM n"
        )
    return path


def written(name: str, data: bytes) -> Callable[[Path], Path]:
    return lambda folder: write(folder / name, data)


ATTACKS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "bomb": (bomb, "unpacks to more than"),
    "endless view": (endless_view, "without a table 'metrics'"),
    "varint": (written("a.wandb", b":W&B\xe1\xbe\0" + bytes(4) + b"\x14\0\x01" + b"\xff" * 20), "more than ten bytes"),
    "long header": (written("a.csv", b"x" * 200_000 + b",reward\n1,0.5\n"), "line 1: not CSV"),
    "deep": (written("a.json", b"[" * 100_000 + b"]" * 100_000), "a.json"),
    "deep lines": (written("a.jsonl", b'{"a":' * 100_000), "a.jsonl"),
    "huge integer": (written("a.jsonl", b'{"step": ' + b"9" * 400 + b', "reward": 0.5}\n'), "recognised as compute"),
    "huge reward": (written("a.csv", b"step,reward\n" + b"1,1e308\n" * 9), "no usable curve"),
    "huge number": (
        written("a.csv", b"step,reward\n" + b"9" * 5000 + b",0.6\n"),
        "recognised as compute",
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_ends_in_a_sentence(tmp_path: Path, name: str) -> None:
    make, sentence = ATTACKS[name]
    assert sentence in fault(make(tmp_path))


def test_names_are_clean_where_they_enter(tmp_path: Path) -> None:
    evil = "a\x1b[31m\u202eb\x9bc"
    rows = [(f"{evil}{run}", at, 0.1 * at) for run in (1, 2) for at in range(1, 8)]
    curves = read(write(tmp_path / "log.csv", (f"run,step,eval/reward/{evil}", rows)))
    texts: list[str] = []
    for series in curves:
        said = [sentences.text(fact.kind, fact.values) for fact in series.facts]
        texts += [series.name, series.x_label, series.y_label, *said]
    assert len(curves) == 2
    assert all(text.isprintable() for text in texts)
    assert "no file matches" in fault(tmp_path / f"{evil}.csv")


REPEATED = (
    *(
        "9",
        "9,",
        "9.",
        "a",
        "a ",
        "  ",
        "- ",
        "{",
        "{'",
        "'a': 1, ",
        "a=",
        "a:",
        "step ",
        "1/",
        "5%|#| 1/2 [",
        "[",
        "(",
    ),
    *("|", "\x1b[", "\x1b]", "a_", "1:", "9h ", "np.float64(", "Evaluat", "(pid=", "\t", ";", '","', "a - ", "1,000"),
)


@pytest.mark.parametrize("begin", ["", "step:1 - a:", "{'a': ", "step,reward\n1,"])
def test_no_line_takes_long(tmp_path: Path, begin: str) -> None:
    for part in REPEATED:
        path = write(tmp_path / "a.log", begin + part * (60_000 // len(part)) + "/\n")
        began = time.process_time()
        fault(path)
        assert time.process_time() - began < 1, part
