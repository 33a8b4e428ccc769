"""Every kind of log, as its trainer writes it; and one sentence for each thing that cannot be read."""

import gzip
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from log_texts import rising, verl
from run_folders import write_study

from scalerl import store
from scalerl.errors import InputError
from scalerl.logs import source
from scalerl.logs.build import arranged
from scalerl.logs.columns import ARM, RUN
from scalerl.logs.formats import FILES, FOLDERS, expand, read_table, read_tables
from scalerl.logs.series import Selection, series_from
from scalerl.logs.table import Table


def _file(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    return path


def _lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    return _file(path, "".join(json.dumps(row) + "\n" for row in rows))


def _column(table: Table, name: str) -> list[Any]:
    return [row.get(name) for row in table.rows]


def _run_folder(folder: Path, **recipe: Any) -> Path:
    _file(folder / "recipe.json", json.dumps(recipe))
    rows = [
        {"step": 10 * at, "attempt": 1, "set": "val", "gpu_hours": 2.0 * at, "tokens": 5 * at, "reward": 0.25 + at / 10}
        | {"num_samples": 100, "prompts_hash": "ab", "num_correct": [1, 0]}
        for at in range(3)
    ]
    _lines(folder / "evals.jsonl", rows)
    return folder


LONG = [
    f"{run},{tag},{step},{step / 10}" for run in "ab" for step in (1, 2, 3) for tag in ("train/loss", "eval/accuracy")
]
SEEDED = [
    f"{s},{t},{at},{(1 + s) * at * n}"
    for t, n in (("reward", 0.1), ("tokens", 100))
    for s in (0, 1)
    for at in (1, 2, 3)
]
NAMED = [f"{run},{step},{0.1 * step}" for run in ("base", "new") for step in (1, 2, 3)]
COLUMNS = {"step": [1, 2, 3], "reward": [0.1, None, 0.3]}
BY_ROW = {name: {str(at): cell for at, cell in enumerate(column)} for name, column in COLUMNS.items()}
HISTORY = {"config": {"lr": 1}, "history": [{"step": 1, "reward": 0.1}, {"step": 2, "reward": 0.2}]}
NESTED = [{"step": 1, "loss": {"pg": 0.5, "kl": {"mean": 1}}}, {"step": 1, "eval/reward": 0.5, "num_correct": [1, 0]}]

# What is written -> columns of the table
TABLES: dict[str, tuple[str, dict[str, list[Any]]]] = {
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
    "a bad cell": ("step,reward\n1,0.5\n2,oops\n3,0.6\n", {"reward": [0.5, "oops", 0.6]}),
    "repeated column": ("step,reward,reward,\n1,0.5,0.7,x\n", {"reward": [0.5], "reward.3": [0.7], "column 4": ["x"]}),
    "one metric per row": (
        "\n".join(["run,tag,step,value", *LONG]),
        {"run": [*"aaabbb"], "eval/accuracy": [0.1, 0.2, 0.3] * 2},
    ),
    "metrics of seeds": ("\n".join(["seed,tag,step,value", *SEEDED]), {"tokens": [100, 200, 300, 200, 400, 600]}),
    "names of runs": ("\n".join(["name,step,value", *NAMED]), {"name": ["base"] * 3 + ["new"] * 3}),
    "json columns": (json.dumps(COLUMNS), COLUMNS),
    "json columns, indented": (json.dumps(COLUMNS, indent=1), COLUMNS),
    "json by row": (json.dumps(BY_ROW), COLUMNS),
    "json history": (json.dumps(HISTORY), {"step": [1, 2], "reward": [0.1, 0.2]}),
    "json history, indented": (json.dumps(HISTORY, indent=1), {"step": [1, 2], "reward": [0.1, 0.2]}),
    "json list": ('[\n {"step": 1, "reward": 0.5}\n]', {"step": [1], "reward": [0.5]}),
    "json lines": (
        "".join(json.dumps(row) + "\n" for row in NESTED),
        {"step": [1, 1], "loss/pg": [0.5, None], "loss/kl/mean": [1, None], "eval/reward": [None, 0.5]},
    ),
    "lines that are no rows": ('{"step": 1}\nWarning: x\n{"step": 2}\n3\n{"step": 3}\n', {"step": [1, 2, 3]}),
    "cut last line": ('{"step": 1, "reward": 0.5}\n{"step": 2, "rew', {"step": [1], "reward": [0.5]}),
    "cut number": ("step,reward\n1,0.45\n2,0.5\n3,0.", {"step": [1, 2], "reward": [0.45, 0.5]}),
    "number cut before its point": ("step,reward\n1,0.45\n2,0.5\n3,0", {"reward": [0.45, 0.5]}),
    "whole last number": ("step,reward\n1,0.45\n2,0.5\n3,1", {"reward": [0.45, 0.5, 1]}),
    "ms-swift": ('{"reward": 0.1, "global_step/max_steps": "5/400"}\n', {"global_step/max_steps": [5]}),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_columns_are_read_as_written(tmp_path: Path, name: str) -> None:
    text, expected = TABLES[name]
    table = read_table(_file(tmp_path / "log", text))
    assert {column: _column(table, column) for column in expected} == {
        column: [pytest.approx(cell) if isinstance(cell, float) else cell for cell in cells]
        for column, cells in expected.items()
    }


def test_rows_know_their_places(tmp_path: Path) -> None:
    assert read_table(_file(tmp_path / "a.csv", "step,reward\n1,0.5\n\n2,0.6\n")).places.tolist() == [
        "line 2",
        "line 4",
    ]
    assert read_table(_file(tmp_path / "a.json", '[{"step": 1, "reward": 0.5}]')).places.tolist() == ["row 1"]


def test_gzipped_text_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"step,reward\n1,0.5\n"))
    assert read_table(path).rows == [{"step": 1.0, "reward": 0.5}]
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(InputError, match=r"a\.csv\.gz cannot be decompressed .*: it is damaged or cut; copy it again"):
        read_table(path)


# Run folders


def test_run_folder_is_its_evaluations(tmp_path: Path) -> None:
    folder = _run_folder(tmp_path / "run", train={"seed": 7, "data": {"seed": 9}})
    table = read_table(folder)
    assert (table.kind, table.x, table.y, table.seed, table.num_samples) == (
        "run",
        "gpu_hours",
        "reward",
        "seed",
        "num_samples",
    )
    assert _column(table, "seed") == [7, 7, 7]
    assert table.rows[1]["num_correct"] == [1, 0]
    assert table.places[2] == "evals.jsonl line 3"
    assert read_table(folder / "evals.jsonl").rows == table.rows


def test_metrics_of_a_run_folder_are_read(tmp_path: Path) -> None:
    folder = _run_folder(tmp_path / "run")
    rows = [
        {"step": 1, "attempt": 1, "gpu_hours": 1.0, "reward/mean": 0.5},
        {"step": 1, "attempt": 2, "gpu_hours": 2.0},
    ]
    table = read_table(_lines(folder / "metrics.jsonl", rows))
    assert _column(table, "gpu_hours") == [2.0]


def test_study_is_the_evaluations_of_its_runs(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "study", seeds=(0, 1), num=6)
    (folder / "runs" / "lower-seed1" / "evals.jsonl").unlink()  # not evaluated yet
    table = read_table(folder)
    assert {(row["arm"], row["seed"]) for row in table.rows} == {("base", 0), ("base", 1), ("lower", 0)}
    assert (table.seed, table.y) == ("seed", "reward")
    series = series_from([table], Selection())
    assert [one.name for one in series] == ["base", "lower"]
    alone = [one for seed in (0, 1) for one in series_from([read_table(folder / f"runs/base-seed{seed}")], Selection())]
    assert sorted(series[0].reward) == sorted(value for one in alone for value in one.reward)


def test_evaluations_of_a_study_are_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, parsed, parse = write_study(tmp_path / "study", seeds=(0, 1), num=6), [], store.parse_lines

    def counted(text: str, path: Path) -> list[tuple[int, store.Row]]:
        parsed.append(path)
        return parse(text, path)

    monkeypatch.setattr(store, "parse_lines", counted)
    read_table(folder)
    evals = [path for path in parsed if path.name == store.EVALS]
    assert sorted(evals) == sorted(folder.glob(f"runs/*/{store.EVALS}"))


@pytest.mark.parametrize(
    "told, sentence", [("[]", "JSON object is needed"), ("{", "not JSON"), ("{}", "holds no rows")]
)
def test_study_without_runs_is_an_error(tmp_path: Path, told: str, sentence: str) -> None:
    (tmp_path / "study.json").write_text(told)
    with pytest.raises(InputError, match=sentence):
        read_table(tmp_path)


# Compute

HOURS = (
    '"Relative Time (Process)","a - quality","a - quality__MIN","a - quality__MAX"\n3600,0.5,0.5,0.5\n7200,0.6,0,1\n'
)
STEP_TIMES = [
    row for s in (10, 20, 30) for row in ({"step": s, "step_time": 36.0}, {"step": s, "eval_reward": 0.01 * s})
]
STATE = json.dumps({"log_history": [*STEP_TIMES, {"step": 30, "total_flos": 1e9}]}, indent=2)
PRIME = "".join(
    json.dumps({"step": step, **row}) + "\n"
    for step in range(1, 5)
    for row in (
        {"progress/total_tokens": 100 * step, "progress/tokens": 100, "time/step": 36.0},
        {"reward/all/mean": 0.5, "reward/all/max": 0.9},
        *[{"eval/aime2024/avg@8": 0.1 * step, "eval/aime2024/completion_len/avg": 900}] * (step % 2 == 0),
    )
)
SPLIT = "".join(
    json.dumps({"step": step, "split": split, name: value}) + "\n"
    for step, split, name, value in [
        (0, "eval", "eval/acc", 0.1), *((step, "train", "step_time", 3600.0) for step in (1, 2, 3, 4)),
        (2, "eval", "eval/acc", 0.2),
    ]
)  # fmt: skip
SEEDS = "arm,seed,step,step_time,reward\n" + "".join(
    f"{arm},{seed},{step},3600,0.{step}\n" for step in (1, 2, 3) for arm in "ab" for seed in (0, 1)
)


# --gpus asks for GPU-hours, so that tokens give way. A step time is the mean since the row before.
@pytest.mark.parametrize(
    "text, gpus, x, y, compute",
    [
        (HOURS, 4, "gpu_hours", "quality", [4, 8]),
        (PRIME, None, "progress/total_tokens", "eval/aime2024/avg@8", [200, 400]),
        (PRIME, 100, "gpu_hours", "eval/aime2024/avg@8", [2, 4]),
        (STATE, 10, "gpu_hours", "eval_reward", [1, 2, 3]),
        (SPLIT, None, "hours", "eval/acc", [2]),
        (SEEDS, 2, "gpu_hours", "reward", [2, 4, 6, 2, 4, 6]),
        ("reward,step_time\n0.5,1800\n0.6,1800\n", None, "hours", "reward", [0.5, 1]),
    ],
)
def test_compute_is_built_and_filled_in(
    tmp_path: Path, text: str, gpus: float | None, x: str, y: str, compute: list[float]
) -> None:
    series, *_ = series_from([read_table(_file(tmp_path / "log", text))], Selection(gpus=gpus))
    assert (series.x_label, series.y_label, series.compute.tolist()) == (x, y, pytest.approx(compute))


@pytest.mark.parametrize("gpus", [0, -1, float("nan")])
def test_number_of_gpus_must_be_positive(tmp_path: Path, gpus: float) -> None:
    with pytest.raises(InputError, match="is not a number of GPUs: give how many"):
        arranged(read_table(_file(tmp_path / "log", SEEDS)), Selection(gpus=gpus))


@pytest.mark.parametrize(
    "names, x, y",
    [
        (["step", "tokens", "flops", "gpu_hours", "reward"], "gpu_hours", "reward"),
        (["GPU Hours", "Pass-Rate"], "GPU Hours", "Pass-Rate"),
        (["step", "tokens", "total_flos", "reward"], "total_flos", "reward"),
        (["step", "train/reward", "eval/reward/std", "eval/reward/mean"], "step", "eval/reward/mean"),
        (
            ["step", "test/env/all/reward/total", "test/env/all/correct", "env/all/correct"],
            "step",
            "test/env/all/correct",
        ),
        (["step", "env/all/correct", "env/all/reward/total"], "step", "env/all/reward/total"),
        (["step", "reward", "rewards/accuracy_reward/mean", "frac_reward_zero_std"], "step", "reward"),
        (["global_step", "reward", "accuracy"], "global_step", "accuracy"),
        (["Wall time", "Step", "Value"], "Step", "Value"),
        (["epoch", "loss", "eval_loss", "eval_runtime"], None, None),
        (["step", "val/acc/best@8/mean", "val/acc/maj@8/mean", "val/acc/mean@8"], "step", "val/acc/mean@8"),
        (["step", "eval_best_reward", "eval_reward"], "step", "eval_reward"),
        (["step", "val/format_acc", "val/test_score/gsm8k"], "step", "val/test_score/gsm8k"),
        (["step", "reward/format", "reward/accuracy", "reward/total"], "step", "reward/total"),
        (["epoch", "val_accuracy"], "epoch", "val_accuracy"),
        (["epoch", "current_steps", "reward"], "current_steps", "reward"),
        (["time/total_timesteps", "time/fps", "rollout/ep_rew_mean"], "time/total_timesteps", "rollout/ep_rew_mean"),
    ],
)
def test_columns_are_recognised_in_the_order_documented(
    tmp_path: Path, names: list[str], x: str | None, y: str | None
) -> None:
    table = read_table(_file(tmp_path / "a.csv", ",".join(names) + "\n" + ",".join(["0.5"] * len(names)) + "\n"))
    assert (table.x, table.y) == (x, y)


# What a path is decided to be


def _state(path: Path, num: int) -> Path:
    history = [{"step": step, "reward": 0.3 + step / 1000} for step in range(1, num + 1)]
    return _file(path, json.dumps({"global_step": num, "log_history": history}))


def _steps(path: Path) -> Path:
    return _lines(path, [{"step": step, "reward": 0.5} for step in range(1, 9)])


def test_trainer_folder_is_its_longest_history(tmp_path: Path) -> None:
    for step in (100, 20, 60):
        _state(tmp_path / f"out/checkpoint-{step}/trainer_state.json", step)
    (tmp_path / "out/checkpoint-120").mkdir()
    (tmp_path / "out/checkpoint-120/trainer_state.json").write_text('{"log_history": [{"st')
    table = read_table(tmp_path / "out")
    assert (table.kind, len(table.rows)) == ("json", 100)
    [fact] = table.facts
    expected = {"file": "checkpoint-100/trainer_state.json", "num_rows": 100, "num_files": 4}
    assert (fact.kind, fact.values) == ("longest_history", expected)
    [series] = series_from([table], Selection())
    assert series.name == "out"
    assert "checkpoint-100" in series.notes[0]


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
        _file(tmp_path / name.format(step, run=run), json.dumps({"results": {"gsm8k": results}, "max_length": 4096}))
    _file(tmp_path / name.format(1300, run="a"), '{"results": {"gsm')
    for other in ("checkpoint-100/config.json", "seed_1.json", "notes.json"):
        _file(tmp_path / other, '{"hidden_size": 64}')
    found = series_from(read_tables([tmp_path]), Selection())
    assert [series.name for series in found] == [run or tmp_path.name for run in curves]
    for series in found:
        assert (series.x_label, series.y_label) == ("step", "results/gsm8k/exact_match,strict")
        assert (series.compute.tolist(), series.reward[0]) == (list(steps), pytest.approx(0.15))


def test_folder_with_one_log_is_that_log(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(verl(rising(8)))
    (tmp_path / "config.yaml").write_text("a: 1\n")
    (tmp_path / "notes.txt").write_text("It went well.\n")
    assert read_table(tmp_path).path == tmp_path / "train.log"


def test_folder_of_several_logs_stands_for_them(tmp_path: Path) -> None:
    paths = [_steps(tmp_path / f"{name}.jsonl") for name in "ab"]
    with pytest.raises(InputError, match=r"holds several logs \(a\.jsonl, b\.jsonl\): give them by name"):
        read_table(tmp_path)
    assert [table.path for table in read_tables([tmp_path])] == paths
    folders = [_steps(tmp_path / f"runs/{name}/metrics.jsonl").parent for name in "cd"]
    assert expand([tmp_path / "runs"]) == folders


def test_patterns_stand_for_the_files_they_match(tmp_path: Path) -> None:
    paths = [_steps(tmp_path / f"{name}/metrics.jsonl") for name in "ab"]
    assert expand([str(tmp_path / "*/metrics.jsonl")]) == paths
    assert expand([str(tmp_path / "**/*.jsonl")]) == paths
    with pytest.raises(InputError, match=r"no file matches .*\*\.csv"):
        expand([str(tmp_path / "*.csv")])
    odd = _steps(tmp_path / "run[1].jsonl")
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


# Faults


def _fault(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_table(path)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def test_missing_file_suggests_similar_names(tmp_path: Path) -> None:
    _file(tmp_path / "curves.csv", "a\n")
    assert (
        _fault(tmp_path / "curve.csv") == f"there is no file {tmp_path}/curve.csv: did you mean {tmp_path}/curves.csv?"
    )
    assert _fault(tmp_path / "zzz").endswith("zzz: check the path.")
    assert "its folder" in _fault(tmp_path / "no/such.csv")


def test_unknown_folder_lists_its_content(tmp_path: Path) -> None:
    assert f"the folder {tmp_path} is empty: give a log file" in _fault(tmp_path)
    for number in range(10, 25):
        _file(tmp_path / f"{number}.txt", "")
    assert "holds 10.txt, 11.txt, 12.txt" in _fault(tmp_path)
    assert "20.txt, 21.txt and 3 more: give" in _fault(tmp_path)


def test_folder_of_runs_asks_for_the_runs(tmp_path: Path) -> None:
    _run_folder(tmp_path / "a")
    _run_folder(tmp_path / "b")
    assert f"is a folder of runs (a, b): give them by name, such as {tmp_path}/a" in _fault(tmp_path)


def test_values_are_counted_once_whatever_the_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "".join(f"{step},reward,0.5\n{step},loss,1.5\n" for step in range(100))
    path = _file(tmp_path / "a.csv", "step,metric,value\n" + rows)
    monkeypatch.setattr(source, "_MAX_VALUES", 4 * 200)
    assert read_table(path).columns == ["step", "reward", "loss"]
    words = "".join(f"{step},m{step // 2},0.5\n" for step in range(200))  # as a table it is nearly empty
    assert "holds more than 800 values" in _fault(_file(tmp_path / "b.csv", "step,metric,value\n" + words))


def test_run_without_evaluations_is_an_error(tmp_path: Path) -> None:
    _file(tmp_path / "recipe.json", "{}")
    assert "has no rows in evals.jsonl yet: wait for its first evaluation" in _fault(tmp_path)


@pytest.mark.parametrize(
    "name, data, sentence",
    [
        ("a.csv", b"", "a.csv is empty: give a file with at least a header"),
        ("a.csv", b" \n\n", "a.csv is empty"),
        ("a.csv", b"step,reward\n", "a.csv holds no rows yet: wait"),
        ("a.csv", b"1,2\n3,4\n", "line 1: numbers (1, 2) where column names belong; add a header line"),
        ("a.csv", b"a,b\n1,2,3\n", "line 2: 3 values under 2 columns; quote values that hold ','"),
        ("a.csv", b"a,b,\n1,2,,\n1,2,,3\n", "line 3: 4 values under 3 columns"),
        ("a.csv", b'a,b\n1,"' + b"x" * 200_000 + b'"\n', "not CSV (field larger than field limit"),
        ("a.bin", b"\x89PNG\r\n\0\0\0\rIHDR", "a.bin is binary and not an event file: give CSV, JSON lines"),
        ("a.jsonl", b'{"step": 1,\n', "a.jsonl, line 1: not JSON lines; repair or remove what is none."),
        ("a.jsonl", b'{"step": 1}\nnonsense\nnonsense\n{"step": }\nnonsense\n{"a": 1}, 3\n', "line 2: not JSON lines"),
        ("a.json", b'[{"step": 1},\n{"step": }]', "a.json, line 2: not JSON (Expecting value); repair or remove it"),
        (
            "a.json",
            b'{\n"step": 1\n}',
            "is JSON, but neither a list of rows, nor columns of equal length, nor",
        ),
        ("a.json", b"[1, 2]", "is JSON, but neither a list of rows"),
        ("trainer_state.json", b'{"log_history": []}', "trainer_state.json holds no rows yet: wait"),
    ],
)
def test_unreadable_content_is_one_sentence(tmp_path: Path, name: str, data: bytes, sentence: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    assert sentence in _fault(path)


def test_unreadable_file_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(self))

    path = _file(tmp_path / "a.csv", "step,reward\n1,0.5\n")
    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert _fault(path) == f"cannot read {path}: Permission denied."


def test_readers_import_nothing_heavy() -> None:
    heavy = "{'torch', 'pandas', 'scipy', 'tensorboardX', 'pydantic'}"
    code = f"import sys, scalerl.logs.series; print({heavy} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
