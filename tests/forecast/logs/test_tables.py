"""Tables as people paste and keep them: with bars, with titles, turned round, in notebooks, of several benchmarks."""

import json
import time
from pathlib import Path

import pytest
from read_logs import fault, kinds, names, read, runs, write

from scalerl.forecast.logs import Series
from scalerl.forecast.logs.readers.notebook import printed_by_cells

REWARDS = [round(0.2 + 0.6 * step / (step + 4), 3) for step in range(12)]


def points(series: Series) -> list[tuple[float, float]]:
    return list(zip(series.compute.tolist(), series.reward.tolist(), strict=True))


EXPECTED = [(10.0 * step, reward) for step, reward in enumerate(REWARDS)][1:]


def test_markdown_table_in_a_text(tmp_path: Path) -> None:
    rows = "".join(
        f"| {step} | **{reward}** | \u2212{step}.5 |\n" for step, reward in zip(range(0, 120, 10), REWARDS, strict=True)
    )
    text = f"# Results\n\nIt rose, step by step.\n\n| Step | reward | KL |\n|:--|---:|---|\n{rows}\nThe end.\n"
    [series] = read(write(tmp_path / "notes.md", text))
    assert points(series) == EXPECTED


def test_table_without_outer_bars(tmp_path: Path) -> None:
    rows = "".join(f"{10 * at} | {reward}\n" for at, reward in enumerate(REWARDS))
    [series] = read(write(tmp_path / "a.md", f"```\nStep | reward\n-- | --\n{rows}```\n"))
    assert points(series) == EXPECTED


def test_table_that_is_printed_again_and_again(tmp_path: Path) -> None:
    line = "+------+--------+\n"
    text = "".join(
        f"== Status ==\n{line}| iter | reward |\n|------+--------|\n| {10 * at} | {reward} |\n{line}\n"
        for at, reward in enumerate(REWARDS)
    )
    [series] = read(write(tmp_path / "tune.log", text))
    assert points(series) == EXPECTED


def test_tables_in_answers_are_not_the_log(tmp_path: Path) -> None:
    text = ""
    for step, reward in enumerate(REWARDS, start=1):
        text += f"step {step}: reward: {reward} kl: 0.01\n| step | reward |\n|---|---|\n| 1 | 0.9 |\n| 2 | 0.8 |\n"
    [series] = read(write(tmp_path / "train.log", text))
    assert points(series) == list(enumerate(REWARDS, start=1))


def test_bars_and_aligned_blanks_as_delimiters(tmp_path: Path) -> None:
    rows = list(zip(range(0, 120, 10), REWARDS, strict=True))
    bars = "step|reward\n" + "".join(f"{step}|{reward}\n" for step, reward in rows)
    header = "  step   reward\n"
    aligned = [header * (at % 5 == 0) + f"{step:6d} {reward:8.3f}\n" for at, (step, reward) in enumerate(rows)]
    for text in (bars, "".join(aligned)):
        [series] = read(write(tmp_path / "log.txt", text))
        assert points(series) == EXPECTED


def test_titles_and_units_of_a_spreadsheet(tmp_path: Path) -> None:
    rows = "".join(f"{at},{10 * at},{100 * reward:.1f}%,\n" for at, reward in enumerate(REWARDS))
    titles = "Scaling of arm B,,,\nexported in May,,,\n,,,\n"
    text = f"{titles}Steps (k),GPU hours (h),Accuracy (%),Notes\n{rows}Total,110,,\n"
    [series] = read(write(tmp_path / "sheet.csv", text))
    assert (series.x_label, series.y_label) == ("GPU hours (h)", "Accuracy (%)")
    assert points(series) == [(compute, pytest.approx(reward)) for compute, reward in EXPECTED]


@pytest.mark.parametrize("prefix", ["", "step_"])
def test_one_column_per_step_is_to_be_turned(tmp_path: Path, prefix: str) -> None:
    header = ",".join(["model", *(f"{prefix}{10 * at}" for at in range(12))])
    log = write(tmp_path / "turned.csv", (header, [("small", *REWARDS), ("large", *REWARDS)]))
    assert "has a column for each step" in fault(log)


def test_benchmarks_are_evaluation_sets_not_runs(tmp_path: Path) -> None:
    rows = [(10 * at, reward, round(reward / 2, 4)) for at, reward in enumerate(REWARDS)]
    by_step = json.dumps({str(step): {"aime24": first, "math500": second} for step, first, second in rows})
    for name, content in (("a.csv", ("step,aime24,math500", rows)), ("b.json", by_step)):
        first, second = read(write(tmp_path / name, content), y="aime24,math500")
        assert (first.evaluation_set, second.evaluation_set) == ("aime24", "math500")
        assert points(first) == EXPECTED


def test_sets_stay_apart_beside_a_hash_and_whatever_a_curve_is(tmp_path: Path) -> None:
    rows = [
        (arm, seed, 10 * at, kind, f"hash-of-{kind}", reward / (1 + (kind == "code")))
        for arm in "ab"
        for seed in (0, 1)
        for at, reward in enumerate(REWARDS)
        for kind in ("math", "code")
    ]
    log = write(tmp_path / "evals.csv", ("arm,seed,step,set,prompts_hash,reward", rows))
    for series in (read(log), read(log, by=("arm",))):
        assert [each.evaluation_set for each in series] == ["math", "code"] * 2
        assert {len(runs(each)) for each in series} == {2}


def test_evaluation_comes_first_if_few_runs_have_training_rewards(tmp_path: Path) -> None:
    """Two runs at one step are no single answers of it."""
    rows = [
        (arm, seed, 10 * at, reward, "" if seed == 1 else -reward)
        for arm in "ab"
        for seed in (0, 1)
        for at, reward in enumerate(REWARDS)
    ]
    log = write(tmp_path / "evals.csv", ("arm,seed,step,reward,training/reward/mean", rows))
    assert {each.y_label for each in read(log, by=("arm",))} == {"reward"}


def test_evaluations_have_a_list_of_steps_of_their_own(tmp_path: Path) -> None:
    document = {
        "steps": [*range(100)],
        "train_reward": [0.5] * 100,
        "eval_steps": [*range(0, 120, 10)],
        "eval_accuracy": REWARDS,
    }
    [series] = read(write(tmp_path / "history.json", json.dumps(document)))
    assert (series.y_label, points(series)) == ("eval_accuracy", EXPECTED)


def test_names_with_numbers_are_no_steps(tmp_path: Path) -> None:
    document = {arm: {"aime24": 0.1, "math500": 0.7, "amc23": 0.4} for arm in ("base", "grpo")}
    assert "holds no list of rows" in fault(write(tmp_path / "final.json", json.dumps(document, indent=1)))


def test_final_results_of_runs_are_no_curve(tmp_path: Path) -> None:
    rows = [(f"run-{at}", reward, 400) for at, reward in enumerate(REWARDS)]
    assert "one row per run (run_name)" in fault(write(tmp_path / "sweep.csv", ("run_name,eval/accuracy,step", rows)))


def test_train_and_eval_files_are_one_run(tmp_path: Path) -> None:
    write(tmp_path / "run/train_metrics.jsonl", [{"step": at, "reward": 0.3} for at in range(60)])
    write(tmp_path / "run/eval_metrics.jsonl", [{"step": 10 * at, "accuracy": each} for at, each in enumerate(REWARDS)])
    [series] = read(tmp_path / "run")
    assert (series.y_label, points(series), "other_logs" in kinds(series)) == ("accuracy", EXPECTED, True)


def test_a_file_of_tests_beside_one_without_a_word_is_another_curve(tmp_path: Path) -> None:
    for name in ("grpo.jsonl", "grpo-test.jsonl"):
        write(tmp_path / "runs" / name, [{"step": 10 * at, "reward": each} for at, each in enumerate(REWARDS)])
    assert names(read(tmp_path / "runs")) == ["grpo-test", "grpo"]


def test_printed_values_are_no_header(tmp_path: Path) -> None:
    text = "".join(f"\u6b65\u6570: {at}, \u5956\u52b1: {each}, \u635f\u5931: 0.1\n" for at, each in enumerate(REWARDS))
    assert "no column" in fault(write(tmp_path / "train.log", text)) or "no line" in fault(tmp_path / "train.log")


def test_notebooks_are_what_their_cells_printed(tmp_path: Path) -> None:
    rows = "".join(f"<tr><td>{10 * at}</td><td>{reward}</td></tr>" for at, reward in enumerate(REWARDS))
    table = f"<table><tr><th>Step</th><th>reward</th></tr>{rows}</table>"
    printed = "".join(f"step {10 * at}: reward: {reward} loss: 0.1\n" for at, reward in enumerate(REWARDS))
    outputs = {
        "table": {"output_type": "display_data", "data": {"text/html": [table], "text/plain": ["<IPython>"]}},
        "stream": {"output_type": "stream", "text": printed.splitlines(keepends=True)},
    }
    for name, output in outputs.items():
        cells = [{"cell_type": "markdown", "source": []}, {"cell_type": "code", "outputs": [output]}]
        notebook = json.dumps({"cells": cells, "nbformat": 4, "nbformat_minor": 5}, indent=1)
        [series] = read(write(tmp_path / f"{name}.ipynb", notebook))
        assert points(series) == EXPECTED


@pytest.mark.parametrize("part", ["<tr>", "<td ", "<td>", "<", "<tr><td>"])
def test_tables_of_a_notebook_are_found_in_no_time(part: str) -> None:
    html = f"<tr>{part * (100_000 // len(part))}</tr"
    cells = [{"outputs": [{"data": {"text/html": html}}]}]
    began = time.process_time()
    printed_by_cells(json.dumps({"cells": cells, "nbformat": 4}).encode())
    assert time.process_time() - began < 2


def test_short_table_under_many_records_is_a_summary(tmp_path: Path) -> None:
    printed = "".join(f"step {10 * at}: reward: {reward} loss: 0.1\n" for at, reward in enumerate(REWARDS))
    table = "| step | accuracy |\n|---|---|\n| 100 | 0.31 |\n| 200 | 0.35 |\n| 300 | 0.36 |\n"
    [series] = read(write(tmp_path / "train.log", f"{printed}\nLast evaluations:\n\n{table}"))
    assert points(series) == EXPECTED


@pytest.mark.parametrize("content", [b"PK\x03\x04" + bytes(400), b"a" * 257 + b"ustar" + bytes(400)])
def test_archives_are_named(tmp_path: Path, content: bytes) -> None:
    assert "is an archive or a spreadsheet" in fault(write(tmp_path / "logs.bin", content))


def test_numbers_without_names_ask_for_a_header(tmp_path: Path) -> None:
    assert "put a line with names above them" in fault(write(tmp_path / "a.csv", ("1,0.5", [(2, 0.6), (3, 0.7)])))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_every_end_of_a_line_is_one(tmp_path, end):
    rows = ["step,reward", *(f"{step},{0.1 + step / 100}" for step in range(8))]
    path = tmp_path / "log.csv"
    path.write_bytes(end.join([*rows, ""]).encode())
    [series] = read(path)
    assert len(series.compute) == 7
    assert series.start == pytest.approx(0.1)
