"""Every kind of log, as its trainer writes it; and one sentence for each thing that cannot be read."""

import gzip
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from log_texts import rising, verl
from other_user import needs_another_user, run_as_another
from read_logs import Content, column, fault, kinds, names, planned, read, rows, write
from run_folders import write_run, write_study
from until import wait_until

from scalerl.errors import InputError
from scalerl.forecast.logs import read_log, read_logs
from scalerl.forecast.logs.columns import ROLES
from scalerl.forecast.logs.formats import FOLDERS
from scalerl.forecast.logs.frame import Frame
from scalerl.forecast.logs.readers import budget, source
from scalerl.forecast.logs.readers.containers import BINARY, TEXT
from scalerl.forecast.logs.selection import Selection
from scalerl.forecast.logs.shapes import shaped
from scalerl.forecast.report.build import build_report
from scalerl.forecast.report.options import FitOptions
from scalerl.runfolder import store


def tidy(path: Path) -> Frame:
    """Return the frame of a log with one row per run and step."""
    return shaped(read_log(path).frame, Selection())[0]


def _run_folder(folder: Path, **recipe: Any) -> Path:
    write(folder / "recipe.json", json.dumps(recipe))
    rows = [
        {"step": 10 * at, "attempt": 1, "set": "val", "gpu_hours": 2.0 * at, "tokens": 5 * at, "reward": 0.25 + at / 10}
        | {"num_samples": 100, "prompts_hash": "ab", "num_correct": [1, 0]}
        for at in range(3)
    ]
    return write(folder / "evals.jsonl", rows).parent


LONG = [(run, tag, at, at / 10) for run in "ab" for at in (1, 2, 3) for tag in ("train/loss", "eval/accuracy")]
SEEDED = [(s, t, at, (1 + s) * at * n) for t, n in (("reward", 0.1), ("tokens", 100)) for s in (0, 1) for at in (1, 2)]
NAMED = [(run, step, 0.1 * step) for run in ("base", "new") for step in (1, 2, 3)]
COLUMNS = {"step": [1, 2, 3], "reward": [0.1, None, 0.3]}
BY_ROW = {name: {str(at): cell for at, cell in enumerate(column)} for name, column in COLUMNS.items()}
HISTORY = {"config": {"lr": 1}, "history": [{"step": 1, "reward": 0.1}, {"step": 2, "reward": 0.2}]}
NESTED = [{"step": 1, "loss": {"pg": 0.5, "kl": {"mean": 1}}}, {"step": 1, "eval/reward": 0.5, "num_correct": [1, 0]}]

# What is written -> columns of the table
TABLES: dict[str, tuple[Content, dict[str, list[Any]]]] = {
    "comma": ("arm,gpu_hours,reward\r\na,1,0.5\r\n\r\nb,2e3,\r\n", {"gpu_hours": [1, 2000], "reward": [0.5, None]}),
    "delimiter ;": ("arm;gpu_hours;pass_rate\na;1;0.5\n\nb;2e3;\n", {"arm": ["a", "b"], "gpu_hours": [1, 2000]}),
    "not utf-8": ("step;Gr\udcf6\udcdfe;reward\n1;2;0.5\n", {"step": [1], "reward": [0.5]}),
    "delimiter tab": ("\ufeffarm\tgpu_hours\tpass_rate\na\t1\t0.5\n", {"arm": ["a"], "pass_rate": [0.5]}),
    "excel": ("sep=;\nstep;reward\n1;0,1\n2;0,2\n", {"reward": [0.1, 0.2]}),
    "excel, quoted": ('"sep=;"\r\nstep;reward\n1;0,5\n2;0,75\n', {"reward": [0.5, 0.75]}),
    "comments": ("# exported\n# from a tracker, run 7\nstep;reward\n1;0,1\n2;0,2\n", {"reward": [0.1, 0.2]}),
    "quoted": ('name,step,reward\n"a, b",1,0.5\n', {"name": ["a, b"], "step": [1], "reward": [0.5]}),
    "dicts in cells": ("step,reward,note\n1,0.5,\"{'a': 1}\"\n2,0.6,\"{'a': 2}\"\n", {"reward": [0.5, 0.6]}),
    "labels": ("sha,reward,step\n3e7,0.5,1\nabc,0.5,2\n1_2,0.5,3\n", {"sha": ["3e7", "abc", "1_2"]}),
    "a bad cell": ("step,reward\n1,0.5\n2,oops\n3,0.6\n", {"reward": ["0.5", "oops", "0.6"]}),
    "repeated column": ("step,reward,reward,\n1,0.5,0.7,x\n", {"reward": [0.5], "reward.3": [0.7], "column 4": ["x"]}),
    "gzipped": (gzip.compress(b"step,reward\n1,0.5\n"), {"step": [1], "reward": [0.5]}),
    # Numbers as people and spreadsheets write them
    "thousands": ('a,b\n"1,200,000",0.25\n900,\n"1,000.5",3e2\n', {"a": [1.2e6, 900, 1000.5], "b": [0.25, None, 300]}),
    "per cent": ("a,b\n30.4%,1\n25 %,2\nn/a,3\n", {"a": [0.304, 0.25, None]}),
    "decimal commas": ("a;b;c\n900;0,25;19,76 %\n1.000;1.234,5;20 %\n",
                       {"a": [900, 1000], "b": [0.25, 1234.5], "c": [0.1976, 0.2]}),
    "a dot where no comma is": ("a;b\n1.000;x\n2.000;y\n", {"a": [1.0, 2.0]}),
    "a dot behind a zero": ("a;b\n0.250;0,5\n0.300;1,5\n", {"a": [0.25, 0.3], "b": [0.5, 1.5]}),
    "thousands beside points": ("a\tb\n900\t0.25\n1,200\t0.3\n", {"a": [900, 1200], "b": [0.25, 0.3]}),
    "commas without points": ("a;b\n1,200;1\n1,250;2\n", {"a": [1.2, 1.25], "b": [1, 2]}),
    "no numbers": ('a,b,c\n3e7,30%,"1,2"\nbase,0.3,"3,4"\n',
                   {"a": ["3e7", "base"], "b": [0.3, 0.3], "c": ["1,2", "3,4"]}),
    # Other shapes
    "one metric per row": (("run,tag,step,value", LONG), {"run": [*"aaabbb"], "eval/accuracy": [0.1, 0.2, 0.3] * 2}),
    "metrics of seeds": (("seed,tag,step,value", SEEDED), {"tokens": [100, 200, 200, 400]}),
    "names of runs": (("name,step,value", NAMED), {"name": ["base"] * 3 + ["new"] * 3}),
    "json columns": (json.dumps(COLUMNS), COLUMNS),
    "json by row": (json.dumps(BY_ROW), COLUMNS),
    "json history": (json.dumps(HISTORY), {"step": [1, 2], "reward": [0.1, 0.2]}),
    "json lines": (NESTED, {"step": [1, 1], "loss/pg": [0.5, None], "loss/kl/mean": [1, None]}),
    # What is still being written, or was cut
    "lines that are no rows": ('{"step": 1}\nWarning: x\n{"step": 2}\n3\n{"step": 3}\n', {"step": [1, 2, 3]}),
    "cut last line": ('{"step": 1, "reward": 0.5}\n{"step": 2, "rew', {"step": [1], "reward": [0.5]}),
    "cut character": ('{"step": 1, "reward": 0.5}\n{"step": 2, "note": "\u00e9'.encode()[:-1], {"reward": [0.5]}),
    "cut row": ("step,tokens,reward\n1,10,0.5\n2,20,0.6\n3,3", {"step": [1, 2]}),
    "cut number": ("step,reward\n1,0.45\n2,0.5\n3,0.", {"step": [1, 2], "reward": [0.45, 0.5]}),
    "number cut before its point": ("step,reward\n1,0.45\n2,0.5\n3,0", {"reward": [0.45, 0.5]}),
    "whole last number": ("step,reward\n1,0.45\n2,0.5\n3,1", {"reward": [0.45, 0.5, 1]}),
    "zeros at the beginning": (bytes(5000) + verl(rising(8)).encode(), {"step": list(range(1, 9))}),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_columns_are_read_as_written(tmp_path: Path, name: str) -> None:
    content, expected = TABLES[name]
    frame = tidy(write(tmp_path / "log", content))
    assert {name: column(frame, name) for name in expected} == {
        name: [pytest.approx(cell) if isinstance(cell, float) else cell for cell in cells]
        for name, cells in expected.items()
    }


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    "lines", [["step,reward", "1,0.5", "2,0.75"], ['{"step": 1, "reward": 0.5}', '{"step": 2, "reward": 0.75}']]
)
def test_encodings_and_line_ends(tmp_path: Path, encoding: str, end: str, lines: list[str]) -> None:
    path = write(tmp_path / "log", (end.join(lines) + end).encode(encoding))
    assert rows(read_log(path).frame) == [{"step": 1, "reward": 0.5}, {"step": 2, "reward": 0.75}]


def test_rows_know_their_places(tmp_path: Path) -> None:
    found = [
        read_log(write(tmp_path / "a", text)).frame.origin.tolist() for text in ("a,b\n1,2\n\n3,4\n", '[{"step": 1}]')
    ]
    assert found == [["line 2", "line 4"], ["row 1"]]


# Run folders


def test_run_folder_is_its_evaluations(tmp_path: Path) -> None:
    folder = _run_folder(tmp_path / "run", train={"seed": 7, "data": {"seed": 9}})
    plan = planned(folder)
    assert (plan.kind, plan["gpu_hours"], plan["y"]) == ("run", "gpu_hours", "reward")
    assert plan.frame.origin[2] == "evals.jsonl line 3"
    assert column(plan.frame, "seed") == [7, 7, 7]
    assert rows(read_log(folder / "evals.jsonl").frame) == rows(read_log(folder).frame)
    attempts = [{"step": 1, "attempt": n, "gpu_hours": float(n), "reward/mean": 0.5} for n in (1, 2)]
    assert column(read_log(write(folder / "metrics.jsonl", attempts)).frame, "gpu_hours") == [2.0]


def test_study_is_the_evaluations_of_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_study(tmp_path / "study", seeds=(0, 1), num=6)
    (folder / "runs" / "lower-seed1" / "evals.jsonl").unlink()  # not evaluated yet
    parsed, parse = [], store.parse_lines
    monkeypatch.setattr(store, "parse_lines", lambda text, path: parsed.append(path) or parse(text, path))
    frame = read_log(folder).frame
    assert sorted(path for path in parsed if path.name == store.EVALS) == sorted(folder.glob(f"runs/*/{store.EVALS}"))
    assert {(row["arm"], row["seed"]) for row in rows(frame)} == {("base", 0), ("base", 1), ("lower", 0)}
    series = read(folder)
    assert names(series) == ["base", "lower"]
    alone = [one for seed in (0, 1) for one in read(folder / f"runs/base-seed{seed}")]
    assert sorted(series[0].reward) == sorted(value for one in alone for value in one.reward)


# What a path is decided to be


def _steps(path: Path) -> Path:
    return write(path, [{"step": step, "reward": 0.5} for step in range(1, 9)])


def test_trainer_folder_is_its_longest_history(tmp_path: Path) -> None:
    for num in (100, 20, 60):
        history = [{"step": step, "reward": 0.3 + step / 1000} for step in range(1, num + 1)]
        state = json.dumps({"global_step": num, "log_history": history})
        write(tmp_path / f"out/checkpoint-{num}/trainer_state.json", state)
    write(tmp_path / "out/checkpoint-120/trainer_state.json", '{"log_history": [{"st')
    [series] = read(tmp_path / "out")
    assert (series.name, len(series.compute), kinds(series)) == ("out", 100, ["longest_history"])
    assert series.facts[0].values["file"] == "checkpoint-100"


@pytest.mark.parametrize(
    ("name", "curves"),
    [
        ("step_{}/results.json", [""]),
        ("checkpoint-{}/model/results_2026-05-01.json", [""]),
        ("global_step_{}.json", [""]),
        ("{run}_iter_{:06}.json", ["a", "b"]),
    ],
)
def test_folder_with_a_file_for_each_step_is_a_log(tmp_path: Path, name: str, curves: list[str]) -> None:
    """As lm-evaluation-harness writes them, whose standard errors are no rewards."""
    steps = range(100, 1300, 100)
    for run, step in itertools.product(curves, steps):
        results = {"exact_match_stderr,strict": 0.01, "exact_match,strict": 0.1 + step / 2000}
        write(tmp_path / name.format(step, run=run), json.dumps({"results": {"gsm8k": results}, "max_length": 4096}))
    write(tmp_path / name.format(1300, run="a"), '{"results": {"gsm')
    for other in ("checkpoint-100/config.json", "seed_1.json", "notes.json"):
        write(tmp_path / other, '{"hidden_size": 64}')
    found = read(tmp_path)
    assert names(found) == [run or tmp_path.name for run in curves]
    for series in found:
        assert (series.x_label, series.y_label) == ("step", "results/gsm8k/exact_match,strict")
        assert (series.compute.tolist(), series.reward[0]) == (list(steps), pytest.approx(0.15))


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("step_{step}/{task}_results.json", ["gsm8k_results/acc", "math_results/acc"]),
        ("step_{step}/{task}/results.json", ["gsm8k/results/acc", "math/results/acc"]),
        ("step_{step}/{step}-{task}-results.json", ["gsm8k-results/acc", "math-results/acc"]),
    ],
)
def test_files_of_a_step_with_the_same_columns_are_told_apart(tmp_path: Path, name: str, columns: list[str]) -> None:
    steps = range(10, 60, 10)
    for step, (task, rate) in itertools.product(steps, (("gsm8k", 0.4), ("math", 0.1))):
        write(tmp_path / name.format(step=step, task=task), json.dumps({"acc": rate + step / 1000, "seed": 0}))
    frame = read_log(tmp_path).frame
    assert sorted(name for name in frame.columns if name.endswith("acc")) == columns
    rates = [rate for name in columns for rate in column(frame, name)]
    assert rates == pytest.approx([rate + step / 1000 for rate in (0.4, 0.1)[: len(columns)] for step in steps])


def test_folder_with_one_log_is_that_log(tmp_path: Path) -> None:
    write(tmp_path / "train.log", verl(rising(8)))
    write(tmp_path / "config.yaml", "a: 1\n")
    write(tmp_path / "notes.txt", "It went well.\n")
    assert read_log(tmp_path).path == tmp_path / "train.log"
    unused = read_log(tmp_path).facts[-1]
    assert (unused.kind, unused.values["names"]) == ("files_unused", ("notes.txt",))
    for number in range(70):
        write(tmp_path / f"z{number}.txt", "It went well.\n")
    beyond = read_log(tmp_path).facts[-1]
    assert (beyond.kind, beyond.values["num"]) == ("files_beyond", 8)


def test_logs_beside_run_folders_and_broken_runs_are_named(tmp_path: Path) -> None:
    write_run(tmp_path / "good")
    write_run(tmp_path / "broken")
    write(tmp_path / "broken/evals.jsonl", "not json\n" * 2)
    write(tmp_path / "other.csv", "step,reward\n1,0.5\n")
    unread = [("files_unused", ("broken",)), ("files_beside", ("other.csv",))]
    [log] = read_logs([tmp_path])
    assert [(fact.kind, fact.values["names"]) for fact in log.facts] == unread
    result = build_report([tmp_path], Selection(), FitOptions())
    [curve] = result.curves
    assert "files_beside" in [fact.kind for fact in curve.series.facts]
    # A report knows a run of ours that is broken, and why.
    notes = [note.text for note in result.notes if "broken" in note.text]
    assert any("evals.jsonl" in text for text in notes)


def test_folder_of_several_logs_stands_for_them(tmp_path: Path) -> None:
    paths = [_steps(tmp_path / f"{name}.jsonl") for name in "ab"]
    with pytest.raises(InputError, match=r"holds several logs \(a\.jsonl, b\.jsonl\): give them by name"):
        read_log(tmp_path)
    assert [log.path for log in read_logs([tmp_path])] == paths
    folders = [_steps(tmp_path / f"runs/{name}/metrics.jsonl").parent for name in "cd"]
    assert [log.path for log in read_logs([tmp_path / "runs"])] == folders
    hydra = [_steps(tmp_path / f"outputs/2026-05-01/12-0{at}-00/train.jsonl") for at in (0, 1)]
    assert [log.path for log in read_logs([tmp_path / "outputs"])] == hydra
    uneven = [_steps(tmp_path / f"uneven/{name}.jsonl") for name in ("a/1", "b/1", "b/2", "all")]
    for name in ("config.json", "step_100/actor/vocab.json"):
        write(tmp_path / "uneven" / name, '{"lr": 1}')
    assert [log.path for log in read_logs([tmp_path / "uneven"])] == uneven


@pytest.mark.parametrize("place", ["step_{}.json", "step_{}/results.json", "evals/step_{}.json"])
def test_log_beside_evaluations_of_each_step_is_of_the_same_run(tmp_path: Path, place: str) -> None:
    write(tmp_path / "train.log", verl(rising(40), every=100))
    for step in range(1, 9):
        write(tmp_path / place.format(step), json.dumps({"acc": step / 10}))
    [series] = read(tmp_path)
    assert (series.y_label, len(series.compute), kinds(series)) == ("acc", 8, ["other_logs"])
    assert series.facts[0].values["others"] == ("train.log",)


def test_patterns_stand_for_the_files_they_match(tmp_path: Path) -> None:
    paths = [_steps(tmp_path / f"{name}/metrics.jsonl") for name in "ab"]
    assert (
        [log.path for log in read_logs([tmp_path / "*/metrics.jsonl"])]
        == [log.path for log in read_logs([tmp_path / "**/*.jsonl"])]
        == paths
    )
    assert f"no file matches {tmp_path}/*.csv" in fault(tmp_path / "*.csv")
    odd = _steps(tmp_path / "run[1].jsonl")
    assert [log.path for log in read_logs([odd])] == [odd]


def test_docs_list_every_format() -> None:
    text = (Path(__file__).parents[3] / "docs/logs.md").read_text()
    assert all(f"\n| {name.partition(',')[0]} |" in text for name in (*FOLDERS, *BINARY, *TEXT))
    assert all(name in text for name in (*ROLES["arm"][:7], *ROLES["run"][:3]))


# Faults


def test_missing_file_suggests_similar_names(tmp_path: Path) -> None:
    write(tmp_path / "curves.csv", "a\n")
    close = fault(tmp_path / "curve.csv")
    assert close == f"there is no file {tmp_path}/curve.csv: did you mean {tmp_path}/curves.csv?"
    assert fault(tmp_path / "zzz").endswith("zzz: check the path.")
    assert "its folder" in fault(tmp_path / "no/such.csv")


def test_folder_without_one_log_says_what_it_holds(tmp_path: Path) -> None:
    assert f"the folder {tmp_path} is empty: give a log file" in fault(tmp_path)
    for number in range(10, 25):
        write(tmp_path / f"{number}.txt", "")
    assert "holds 10.txt, 11.txt, 12.txt" in fault(tmp_path)
    assert "20.txt, 21.txt and 3 more: give" in fault(tmp_path)
    folders = [_run_folder(tmp_path / "runs" / name) for name in "ab"]
    with pytest.raises(InputError, match=rf"is a folder of runs \(a, b\): give them by name, such as {folders[0]}"):
        read_log(tmp_path / "runs")


def test_values_and_cells_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(step, *cells) for step in range(100) for cells in (("reward", 0.5), ("loss", 1.5))]
    path = write(tmp_path / "a.csv", ("step,metric,value", rows))
    monkeypatch.setattr(budget, "MAX_VALUES", 4 * 200)
    assert list(tidy(path).columns) == ["step", "reward", "loss"]
    for limit, most in (("MAX_CELLS", 3 * 200 - 1), ("MAX_VALUES", 4 * 200 - 1)):
        monkeypatch.setattr(budget, limit, most)
        assert f"more than {most}" in fault(path)


@pytest.mark.parametrize(
    "name, content, sentence",
    [
        ("a.csv", "", "a.csv is empty: give a file with at least a header"),
        ("a.csv", " \n\n", "a.csv is empty"),
        ("a.csv", "step,reward\n", "a.csv holds no rows yet: wait"),
        ("a.csv", "1,2\n3,4\n", "line 1: numbers (1, 2) where column names belong"),
        ("a.csv", "a,b\n1,2,3\n", "line 2: 3 values under 2 columns"),
        ("a.csv", "a,b,\n1,2,,\n1,2,,3\n", "line 3: 4 values under 3 columns"),
        ("a.csv", 'a,b\n1,"' + "x" * 200_000 + '"\n', "not CSV (field larger than field limit"),
        ("a.csv.gz", gzip.compress(b"step,reward\n1,0.5\n")[:-12], "it is damaged or cut; copy it again"),
        ("a.bin", b"\x89PNG\r\n\0\0\0\rIHDR", "a.bin is binary and not an event file: give CSV, JSON lines"),
        ("a.jsonl", '{"step": 1,\n', "a.jsonl, line 1: not JSON lines; repair or remove what is none."),
        ("a.jsonl", '{"step": 1}\nnonsense\n{"step": }\n{"step" 2}\n{"a": 1}, 3\n', "line 3: not JSON lines"),
        ("a.json", '[{"step": 1},\n{"step": }]', "a.json begins as a JSON list, but is not JSON"),
        ("a.json", '{\n"step": 1\n}', "is JSON, but holds no list of rows"),
        ("a.json", "[1, 2]", "is JSON, but holds no list of rows"),
        ("trainer_state.json", '{"log_history": []}', "trainer_state.json holds no rows yet: wait"),
        ("a.log", "histogram: nothing\nwe evaluated, and it was good\n" * 20, "no line records a training step"),
        ("run/recipe.json", "{}", "has no rows in evals.jsonl: a run has a curve once it is evaluated"),
        ("run/study.json", "[]", "JSON object is needed"),
        ("run/study.json", "{", "not JSON"),
        ("run/study.json", "{}", "holds no rows"),
    ],
)  # fmt: skip
def test_unreadable_content_is_one_sentence(tmp_path: Path, name: str, content: Content, sentence: str) -> None:
    path = write(tmp_path / name, content)
    assert sentence in fault(path.parent if path.parent.name == "run" else path)


def test_unreadable_file_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *given: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    path = _steps(tmp_path / "a.csv")
    monkeypatch.setattr(Path, "open", refuse)
    assert fault(path) == f"cannot read {path}: Permission denied."


def test_pipe_is_read_and_one_without_a_writer_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "pipe is empty" in fault(tmp_path / "pipe")
    reading, writing = os.pipe()
    os.write(writing, b"step,reward\n1,0.5\n")
    os.close(writing)
    assert rows(read_log(f"/dev/fd/{reading}").frame) == [{"step": 1.0, "reward": 0.5}]
    os.close(reading)
    assert "neither a file nor a pipe" in fault(Path("/dev/zero"))


def test_rows_written_during_a_read_wait_for_the_next(tmp_path: Path) -> None:
    path = _steps(tmp_path / "a.csv")
    whole = path.read_bytes()
    is_done = threading.Event()

    def grow() -> None:
        with path.open("ab") as file:
            while not is_done.is_set() and file.tell() < 2**30:
                file.write(b"\n" * 2**20)

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        wait_until(lambda: path.stat().st_size > 2**24)
        sizes = [path.stat().st_size, len(source.bounded_bytes(path)), path.stat().st_size]
    finally:
        is_done.set()
        writer.join()
    assert sizes == sorted(sizes)
    assert path.read_bytes().startswith(whole)


@pytest.mark.parametrize(("limit", "most"), [("_MAX_WAIT_S", 0.1), ("_MAX_UNPACKED", 8)])
def test_pipe_that_is_silent_or_endless_is_refused(monkeypatch: pytest.MonkeyPatch, limit: str, most: float) -> None:
    monkeypatch.setattr(source, limit, most)
    reading, writing = os.pipe()
    os.write(writing, b"step,reward\n1,0.5\n")  # and it stays open
    assert "pipe" in fault(f"/dev/fd/{reading}")
    os.close(writing)
    os.close(reading)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("list.json.gz", b"[" + b"0," * 4_000_000 + b"0]"),
        ("lists.json.gz", b"[" + b"[]," * 4_000_000 + b"0]"),
        ("rows.jsonl.gz", b'{"a":1}\n' * 600_000),
        ("lines.log.gz", b"a=1\n" * 600_000),
        ("wide.csv", b",".join(b"c%d" % at for at in range(100_000)) + b"\n" + (b"1," * 99_999 + b"1\n") * 8),
    ],
)
def test_values_and_lines_are_counted_before_they_are_read(tmp_path: Path, name: str, text: bytes) -> None:
    path = write(tmp_path / name, gzip.compress(text, compresslevel=1) if name.endswith(".gz") else text)
    began = time.process_time()
    assert "which is the limit" in fault(path)
    assert time.process_time() - began < 2


def test_wide_tables_and_nested_rows_take_time_in_proportion(tmp_path: Path) -> None:
    wide = ("step," + ",".join(f"reward_{at}" for at in range(2000)), [[step] + [0.5] * 2000 for step in range(8)])
    nested = [{"step": step, **{f"k{at}": {"a": {"b": at}} for at in range(2000)}} for step in range(8)]
    began = time.process_time()
    for name, content in (("a.csv", wide), ("a.jsonl", nested)):
        assert read_log(write(tmp_path / name, content)).num_rewards >= 0
    assert time.process_time() - began < 15


def test_readers_import_nothing_heavy() -> None:
    heavy = "{'torch', 'pandas', 'scipy', 'tensorboardX', 'pydantic'}"
    code = f"import sys, scalerl.forecast.logs.series; print({heavy} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


PRINTED = {
    "frame.txt": "   step  reward\n0     1    0.10\n1     2    0.20\n2     3    0.30\n",
    "box.txt": "+------+--------+\n| step | reward |\n+------+--------+\n|  1   | 0.1    |\n|  2   | 0.2    |\n",
    "mlruns/abc/metrics/reward": "1700000000 0.1 1\n1700000001 0.2 2\n1700000002 0.3 3\n",
}


@pytest.mark.parametrize("name", PRINTED)
def test_printed_tables_and_mlflow_folders_need_an_export(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, PRINTED[name])
    path = tmp_path / Path(name).parts[0]
    assert "CSV" in fault(path)


@needs_another_user
def test_folders_that_may_not_be_entered_hold_no_log() -> None:
    with tempfile.TemporaryDirectory() as name:  # below tmp_path nobody else may look
        folder = Path(name)
        write(folder / "log.csv", ("step,reward", [(1, 0.2), (2, 0.3), (3, 0.4)]))
        (folder / "closed").mkdir(mode=0o700)
        folder.chmod(0o755)
        program = (
            "print([series.name for series in curves.read([sys.argv[1]])])\n"
            "try: curves.read([sys.argv[1] + '/closed'])\n"
            "except errors.InputError as fault: print(fault)"
        )
        logs = "scalerl.forecast.logs"
        imports = f"{logs} as curves, {logs}.formats, {logs}.curves, scalerl.errors as errors, encodings.utf_8_sig"
        done = run_as_another(program, folder, imports=imports, variables={"PYTHONPATH": os.pathsep.join(sys.path)})
        assert done.stdout.splitlines() == [
            "['log']",
            f"{folder}/closed cannot be listed: you have no permission for it.",
        ]


def test_folder_that_vanishes_while_it_is_listed_holds_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "log.csv", ("step,reward", [(1, 0.2), (2, 0.3), (3, 0.4)]))
    gone = tmp_path / "gone"
    gone.mkdir()
    listed, scandir = [], os.scandir

    def vanishing(path: Any = ".") -> Any:
        if "gone" in os.fspath(path) and not listed:
            listed.append(path)
            gone.rmdir()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", vanishing)
    [series] = read(tmp_path)
    assert (series.name, len(listed)) == ("log", 1)
