"""Containers of logs: each is recognised by its content; what was printed inside one is read by the same readers."""

import json
import time
from pathlib import Path

import pytest
from log_texts import STEPS, cells, lines, printed
from read_logs import fault, read, write

from scalerl.forecast.logs.readers.containers import tables_in
from scalerl.forecast.logs.readers.source import Source

RECORDS = printed("step {step}: loss 0.1, reward {reward}")
ROWS = lines([{"step": step, "reward": reward} for step, reward in STEPS])
TABLE = cells("step,reward", STEPS)


def notebook(text: str) -> str:
    return json.dumps({"cells": [{"outputs": [{"output_type": "stream", "text": text}]}], "nbformat": 4})


def driver(text: str) -> str:
    return lines([{"log": f"{line}\n", "stream": "stdout"} for line in text.splitlines()])


@pytest.mark.parametrize("inside", [RECORDS, ROWS], ids=["console", "jsonl"])
@pytest.mark.parametrize("wrapped", [notebook, driver, lambda text: notebook(driver(text))])
def test_text_inside_a_container_is_read_by_the_same_readers(tmp_path: Path, inside: str, wrapped) -> None:
    [series] = read(write(tmp_path / "log.json", wrapped(inside)))
    assert list(zip(series.compute.tolist(), series.reward.tolist(), strict=True)) == STEPS


def test_table_in_a_notebook_is_read_by_the_same_readers(tmp_path: Path) -> None:
    [series] = read(write(tmp_path / "log.ipynb", notebook(TABLE)))
    assert list(zip(series.compute.tolist(), series.reward.tolist(), strict=True)) == STEPS


@pytest.mark.parametrize(
    ("text", "kind"), [(TABLE, "csv"), (ROWS, "jsonl"), (json.dumps([{"step": 1}]), "json"), (RECORDS, "console")]
)
def test_content_says_which_container_it_is(tmp_path: Path, text: str, kind: str) -> None:
    found = next(tables_in(Source(write(tmp_path / "log.bin", text))))
    assert [table.kind for table in found] == [kind]


def test_record_with_most_keys_and_a_rising_step_comes_before_loose_values(tmp_path: Path) -> None:
    text = printed("step {step}/40 | loss: 0.1 | reward: {reward} | kl: 0.01\naccuracy=0.9\naccuracy=0.8\nacc=0.{step}")
    [series] = read(write(tmp_path / "train.log", text))
    assert (series.y_label, list(zip(series.compute.tolist(), series.reward.tolist(), strict=True))) == (
        "reward",
        STEPS,
    )


def test_loose_values_make_no_curve_by_themselves(tmp_path: Path) -> None:
    assert "no line records a training step" in fault(write(tmp_path / "a.log", printed("accuracy={reward}")))


def test_console_takes_time_in_proportion(tmp_path: Path) -> None:
    names = [f"actor/metric_{at}" for at in range(30)]
    chatter = "The answer is 12 because x = 7 + 3, so the total is 12.\n" * 9
    record = "step {step} | reward: {reward} | " + " | ".join(f"{name}: 0.1234" for name in names)
    path = write(tmp_path / "train.log", printed(f"{record}\n{chatter.strip()}", "", [(at, 0.5) for at in range(1000)]))
    began = time.process_time()
    assert sum(len(table.rows) for table in next(tables_in(Source(path)))) == 1000
    assert time.process_time() - began < 5
