"""Logs in the shapes that trainers, trackers and people write: each is read without an option as what it is."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from log_texts import EVALS, EVERY_4, LOGS, STEPS, Log, R, events, old_verl
from needs import SHARED_DATA, needs_shared_data
from read_logs import names, read, write
from typer.testing import CliRunner

from scalerl.cli import app
from scalerl.forecast.logs import Selection, Series, read_logs, series_from

PRINTED = [log for log in LOGS if log.name.endswith(".log")]


def written(folder: Path, data: bytes) -> Series:
    return read(write(folder / "train.log", data))[0]


def check(curves: list[Series], log: Log) -> None:
    assert [(series.y_label, len(series.compute)) for series in curves] == [(log.y, num) for num in log.points]
    steps, rewards = np.array(EVERY_4 if log.points == EVALS else STEPS).T
    assert curves[0].reward.tolist() == pytest.approx(log.unit * rewards, abs=6e-4 * abs(log.unit))
    assert curves[0].compute / curves[0].compute[-1] * steps[-1] == pytest.approx(steps, abs=1)
    assert curves[0].start == (None if log.start is None else pytest.approx(log.start))
    assert not log.facts or log.facts in {fact.kind for series in curves for fact in series.facts}


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.name)
def test_log_is_read_without_options(tmp_path: Path, log: Log) -> None:
    check(read(write(tmp_path / log.name, log.text)), log)


@pytest.mark.parametrize("log", PRINTED, ids=lambda log: log.name)
def test_growing_console_output_gives_no_wrong_value(tmp_path: Path, log: Log) -> None:
    whole = written(tmp_path, log.text.encode())
    for cut in (1, 3, 9, 30):
        part = written(tmp_path, log.text.encode()[:-cut])
        assert (part.y_label, part.reward.tolist()) == (whole.y_label, whole.reward[: len(part.reward)].tolist())


@pytest.mark.parametrize("log", PRINTED, ids=lambda log: log.name)
def test_windows_line_ends_and_encodings_of_console_output(tmp_path: Path, log: Log) -> None:
    rewards, text = (
        written(tmp_path, log.text.encode()).reward.tolist(),
        log.text.replace("\0", "").replace("\n", "\r\n"),
    )
    for data in (text.encode("utf-8-sig"), text.encode("utf-16"), b"bar \xe2\x96 cut\n" + text.encode()):
        assert written(tmp_path, data).reward.tolist() == rewards


def test_rewards_of_a_run_that_collapsed_are_kept(tmp_path: Path) -> None:
    rewards = [1.3, 1.1, 4.1, *[0.0] * 11]
    [series] = read(write(tmp_path / "log.csv", ("step,reward", list(enumerate(rewards, start=1)))))
    assert (series.reward.tolist(), series.y_scale) == (rewards, "none")


# Folders: one run in several files


def test_folder_of_one_run_in_three_formats_is_its_evaluations(tmp_path: Path) -> None:
    write(tmp_path / "events.jsonl", events())
    write(tmp_path / "console.log", old_verl())
    write(tmp_path / "evals.csv", ("step,eval/acc", EVERY_4))
    [series] = read(tmp_path)
    [fact] = [fact for fact in series.facts if fact.kind == "other_logs"]
    assert (fact.values["file"], fact.values["others"]) == ("evals.csv", ("console.log", "events.jsonl"))
    check([series], Log("", "", "eval/acc", EVALS))


@pytest.mark.parametrize("place", ["{}.csv", "attempt-{}/metrics.csv"])
def test_resumed_files_of_a_folder_are_one_run(tmp_path: Path, place: str) -> None:
    for name, first, last in (("b", 1, 25), ("c", 16, 32), ("a", 29, 40)):
        rows = [(s, r, 60) for s, r in STEPS if first <= s <= last]
        write(tmp_path / place.format(name), ("step,reward,step_time", rows))
    curves = read(tmp_path)
    check(curves, Log("", "", "reward", facts="files_joined"))
    assert curves[0].compute[-1] == pytest.approx(40 / 60)
    assert len(read(tmp_path, by=("file",))) == 3


def test_files_that_begin_alike_are_separate_runs(tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / f"{name}.csv", ("step,reward", STEPS))
    assert names(read(tmp_path)) == ["a", "b"]


# Clocks


@pytest.mark.parametrize(
    "column, moment",
    [
        ("timestamp", lambda seconds: f"2026-01-0{1 + int(seconds // 86400)}T{int(seconds % 86400 // 3600):02}:00:00Z"),
        ("_timestamp", lambda seconds: str(1.7e9 + seconds)),
        ("wall_time", lambda seconds: str(int((1.7e9 + seconds) * 1000))),
        ("_runtime", str),
        ("elapsed_time", lambda seconds: f"{int(seconds // 86400)}d {int(seconds % 86400 // 3600)}h 0m 0s"),
        ("elapsed_time", lambda seconds: f"{int(seconds // 3600)}:00:00"),
    ],
)
def test_clock_gives_gpu_hours_without_pauses(tmp_path: Path, column: str, moment: Callable[[float], str]) -> None:
    # Two days pass between the sixth row and the seventh.
    seconds = [3600.0 * (hour if hour <= 6 else hour + 48) for hour in range(13)]
    rows = [(at, R[at], moment(time)) for at, time in enumerate(seconds)]
    [series] = read(write(tmp_path / "log.csv", (f"step,reward,{column}", rows)), gpus=8)
    assert series.x_label == "gpu_hours"
    assert series.compute.tolist() == pytest.approx([8.0 * hour for hour in range(1, 13)])


# Real logs: file -> (format, reward, compute, points of each curve)

DEEP = "val-core/GSM8K/reward/mean@1"
PUBLISHED = [34, 19, 24, 28, 20, 21, 22, 25, 17, 20, 20, 16, 19, 20, 25, 19, 20, 18, 22]
REAL = {
    "foreign_logs/fair_rlvr_step_logs.json": ("json", "reward_mean", "step", [98]),
    "foreign_logs/tinker_arithmetic_metrics.jsonl": ("jsonl", "env/all/reward/total", "hours", [100]),
    "foreign_logs/tinker_cookbook_1.jsonl": ("jsonl", "reward/mean", "hours", [30]),
    "foreign_logs/tinker_cookbook_3.jsonl": ("jsonl", "reward/mean", "hours", [50]),
    "foreign_logs/tinker_cookbook_4.jsonl": ("jsonl", "reward/mean", "hours", [60]),
    "foreign_logs/tinker_gsm8k_s042.log": ("console", "acc", "step", [50]),
    "foreign_logs/tinker_gsm8k_s137.log": ("console", "acc", "step", [50]),
    "foreign_logs/trl_gemma3_trainer_state.json": ("json", "reward", "step", [25]),
    "foreign_logs/trl_text2sql_trainer_state.json": ("json", "reward", "num_tokens", [200]),
    "foreign_logs/trl_unsloth_trainer_state.json": ("json", "reward", "step", [250]),
    "foreign_logs/verl_attempts": ("csv", "critic/score/mean", "hours", [397]),
    "foreign_logs/wandb_deep_grpo_collapse.csv": ("csv", "val-core/openai/gsm8k/acc/mean@1", "Step", [185]),
    "foreign_logs/wandb_deep_grpo_dynamics.csv": ("csv", DEEP, "Step", [591, 919]),
    "foreign_logs/wandb_deep_grpo_loss_weight.csv": ("csv", DEEP, "Step", [590, 588, 504, 591]),
    "agentgym/textcraft__main-fixed-gp1-cons.csv": ("csv", "critic_score_mean", "hours", [1675]),
    "mimo_first_half.csv": ("csv", "score", "step", [13, 14, 13, 15, 15, 15]),
    "scalerl_published_curves.csv": ("csv", "pass_rate", "gpu_hours", PUBLISHED),
    "tan2025_qwen_base.csv": ("csv", "pass_at_1", "compute_flops", [105, 105, 105, 105, 105, 104, 103]),
}


@needs_shared_data
@pytest.mark.parametrize("name", REAL)
def test_real_log_is_read(name: str) -> None:
    kind, y, x, points = REAL[name]
    tables = read_logs([SHARED_DATA / name])
    assert {table.kind for table in tables} == {kind}
    found = [(series.y_label, series.x_label, len(series.compute)) for series in series_from(tables, Selection())]
    assert found == [(y, x, num) for num in points]


@needs_shared_data
@pytest.mark.parametrize("name", {kind: name for name, (kind, *_) in REAL.items()}.values())
def test_real_log_of_each_format_is_fitted(name: str) -> None:
    result = CliRunner().invoke(app, ["fit", str(SHARED_DATA / name), "--json"])
    assert result.exit_code == 0, result.output or result.exception


@needs_shared_data
def test_three_attempts_of_verl_are_one_run() -> None:
    [series] = read(SHARED_DATA / "foreign_logs/verl_attempts", x="_step")
    assert series.start == pytest.approx(0.00701, abs=1e-4)
    assert (series.compute[0], series.compute[-1]) == (4, 400)
    assert series.reward[-50:].mean() == pytest.approx(0.92, abs=0.02)
    [evaluated] = read(SHARED_DATA / "foreign_logs/verl_attempts", x="_step", y="val/openai/gsm8k/reward/mean")
    assert evaluated.reward.tolist() == pytest.approx([0.007, 0.839, 0.864, 0.871, 0.875], abs=1e-3)
