"""What a path is decided to be: folders of trainers, encodings, patterns and files that are still being written."""

import json
from pathlib import Path
from typing import Any

import pytest
from log_texts import rising, verl

from scalerl.errors import InputError
from scalerl.logs.columns import ARM, RUN
from scalerl.logs.formats import FILES, FOLDERS, expand, read_table, read_tables
from scalerl.logs.series import Selection, series_from


def _state(path: Path, num: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    history = [{"step": step, "reward": 0.3 + step / 1000} for step in range(1, num + 1)]
    path.write_text(json.dumps({"global_step": num, "log_history": history}))
    return path


def _jsonl(path: Path, num: int = 8) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"step": step, "reward": 0.5}) + "\n" for step in range(1, num + 1)))
    return path


def test_trainer_folder_is_its_longest_history(tmp_path: Path) -> None:
    for step in (100, 20, 60):
        _state(tmp_path / f"out/checkpoint-{step}/trainer_state.json", step)
    (tmp_path / "out/checkpoint-120").mkdir()
    (tmp_path / "out/checkpoint-120/trainer_state.json").write_text('{"log_history": [{"st')
    table = read_table(tmp_path / "out")
    assert (table.kind, len(table.rows)) == ("json", 100)
    [fact] = table.facts
    expected = {"file": "checkpoint-100/trainer_state.json", "num_rows": 100, "num_files": 4, "num_unreadable": 1}
    assert (fact.kind, fact.values) == ("longest_history", expected)
    [series] = series_from([table], Selection())
    assert series.name == "out"
    assert "checkpoint-100" in series.notes[0]


def test_folder_with_one_log_is_that_log(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(verl(rising(8)))
    (tmp_path / "config.yaml").write_text("a: 1\n")
    (tmp_path / "notes.txt").write_text("It went well.\n")
    assert read_table(tmp_path).path == tmp_path / "train.log"


def test_folder_of_several_logs_stands_for_them(tmp_path: Path) -> None:
    paths = [_jsonl(tmp_path / f"{name}.jsonl") for name in "ab"]
    with pytest.raises(InputError, match=r"holds several logs \(a\.jsonl, b\.jsonl\): give them by name"):
        read_table(tmp_path)
    assert [table.path for table in read_tables([tmp_path])] == paths
    folders = [_jsonl(tmp_path / f"runs/{name}/metrics.jsonl").parent for name in "cd"]
    assert expand([tmp_path / "runs"]) == folders


def test_patterns_stand_for_the_files_they_match(tmp_path: Path) -> None:
    paths = [_jsonl(tmp_path / f"{name}/metrics.jsonl") for name in "ab"]
    assert expand([str(tmp_path / "*/metrics.jsonl")]) == paths
    assert expand([str(tmp_path / "**/*.jsonl")]) == paths
    with pytest.raises(InputError, match=r"no file matches .*\*\.csv"):
        expand([str(tmp_path / "*.csv")])
    odd = _jsonl(tmp_path / "run[1].jsonl")
    assert expand([odd]) == [odd]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_encodings_and_line_ends(tmp_path: Path, encoding: str, end: str, name: str) -> None:
    rows: list[dict[str, Any]] = [{"step": step, "reward": 0.25 + step / 8} for step in range(1, 5)]
    lines = [json.dumps(row) for row in rows]
    if name == "a.csv":
        lines = ["step,reward", *(f"{row['step']},{row['reward']}" for row in rows)]
    path = tmp_path / name
    path.write_bytes((end.join(lines) + end).encode(encoding))
    assert read_table(path).rows == rows


def test_csv_row_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("step,tokens,reward\n1,10,0.5\n2,20,0.6\n3,3")
    assert [row["step"] for row in read_table(path).rows] == [1, 2]


def test_partly_written_character_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes('{"step": 1, "reward": 0.5}\n{"step": 2, "note": "\u00e9'.encode()[:-1])
    assert read_table(path).rows == [{"step": 1, "reward": 0.5}]


def test_file_that_begins_with_zeros_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(bytes(5000) + verl(rising(8)).encode())
    assert len(read_table(path).rows) == 8


def test_docs_list_every_format() -> None:
    text = (Path(__file__).parents[2] / "docs/logs.md").read_text()
    assert all(f"\n| {name.partition(',')[0]} |" in text for name in (*FOLDERS, *FILES))
    assert all(name in text for name in (*ARM[:7], *RUN[:3]))
