"""Cells as people and libraries write them: with a spread, a unit, a type or a clock around the number."""

from pathlib import Path

import pytest
from read_logs import fault, names, read, write

from scalerl.forecast.logs.frame import number

REWARDS = [round(0.2 + 0.6 * step / (step + 4), 3) for step in range(1, 13)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("34.7 \u00b1 0.8", 34.7),
        ("34.7+/-0.8", 34.7),
        ("71.5% \u00b1 1.2%", 0.715),
        ("0.61 (0.02)", 0.61),
        ("0.61 (\u00b10.02)", 0.61),
        ("0.61 [0.59, 0.63]", 0.61),
        ("-1,204.5 (31)", -1204.5),
        ("\u22120.25", -0.25),
        ("np.float64(0.5)", 0.5),
        ("Array(0.5, dtype=float32)", 0.5),
        ("tensor(0.5000, device='cuda:0', grad_fn=<MeanBackward0>)", 0.5),
        ("tf.Tensor(1e-3, shape=(), dtype=float32)", 1e-3),
        ("Decimal('0.25')", 0.25),
        ("run(3)x", float("nan")),
        ("(0.5)", float("nan")),
        ("7B", float("nan")),
        ("attempt 3", float("nan")),
        ("1 + 1", float("nan")),
    ],
)
def test_number_with_something_around_it(text: str, value: float) -> None:
    assert number(text) == pytest.approx(value, nan_ok=True)


def _clock(seconds: int) -> str:
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


@pytest.mark.parametrize(
    ("head", "cells", "label", "last"),
    [
        ("Wall time", [_clock(900 * at) for at in range(1, 13)], "hours", 3.0),
        ("elapsed", [_clock(900 * at) for at in range(1, 13)], "hours", 3.0),
        ("time (min)", [str(15 * at) for at in range(1, 13)], "time_hours", 3.0),
        ("Wall time [s]", [str(900 * at) for at in range(1, 13)], "Wall time_hours", 3.0),
        ("elapsed_minutes", [str(15 * at) for at in range(1, 13)], "hours", 3.0),
        ("runtime (h)", [str(at / 4) for at in range(1, 13)], "runtime (h)", 3.0),
    ],
)
def test_compute_with_a_unit(tmp_path: Path, head: str, cells: list[str], label: str, last: float) -> None:
    rows = [(f"{cell};{reward} \u00b1 0.01",) for cell, reward in zip(cells, REWARDS, strict=True)]
    [series] = read(write(tmp_path / "table.csv", (f"{head};reward", rows)))
    assert (series.x_label, series.compute[-1]) == (label, pytest.approx(last))
    assert series.reward.tolist() == REWARDS


def test_seconds_of_a_step_in_minutes(tmp_path: Path) -> None:
    rows = [(at, 15, reward) for at, reward in enumerate(REWARDS, start=1)]
    [series] = read(write(tmp_path / "a.csv", ("step,step time (min),reward", rows)))
    assert series.axes["hours"][-1] == pytest.approx(3.0)


def test_sizes_of_models_are_names(tmp_path: Path) -> None:
    rows = [(size, at, reward) for size in ("1.5B", "7B") for at, reward in enumerate(REWARDS, start=1)]
    assert names(read(write(tmp_path / "a.csv", ("model,step,reward", rows)))) == ["model=1.5B", "model=7B"]


@pytest.mark.parametrize("word", ["about {} units", "{}k", "{}B"])
def test_compute_that_is_no_number_is_refused(tmp_path: Path, word: str) -> None:
    rows = [(word.format(at), reward) for at, reward in enumerate(REWARDS, start=1)]
    assert "which is no number" in fault(write(tmp_path / "a.csv", ("tokens,reward", rows)))
    [series] = read(write(tmp_path / "b.csv", ("note,reward", rows)))
    assert series.x_label == "step"
    assert "no column" in fault(tmp_path / "a.csv", x="size")


def test_a_constant_is_not_the_reward_beside_one_that_varies(tmp_path: Path) -> None:
    text = ""
    for at, reward in enumerate(REWARDS, start=1):
        text += f" {10 * at}/120 [===>....] - 8ms/step - reward: 1.0000\n" * 5
        text += f"{10 * at}/120: episode: {at}, duration: 0.4s, episode_reward: {100 * reward:.1f}, loss: 0.1\n"
    [series] = read(write(tmp_path / "keras.log", text))
    assert (series.y_label, len(series.reward)) == ("episode_reward", 12)


@pytest.mark.parametrize("head", ["@timestamp,@message", "Date;Host;Line", "time\tcontent"])
def test_lines_in_the_cells_of_a_table(tmp_path: Path, head: str) -> None:
    mark = next(each for each in ",;\t" if each in head)
    before = mark.join(["2026-01-01 10:00:00"] + ["node-7"] * (head.count(mark) - 1))
    rows = "".join(f'{before}{mark}"step {at} | reward: {reward}, loss: 0.1"\n' for at, reward in enumerate(REWARDS, 1))
    [series] = read(write(tmp_path / "export.csv", f"{head}\n{rows}"))
    assert (series.x_label, series.reward.tolist(), series.compute[-1]) == ("step", REWARDS, 12)


@pytest.mark.parametrize(
    ("part", "whole"),
    [
        ("eval/math/acc", "eval/all/acc"),
        ("eval_accuracy_hard_set", "eval_accuracy_overall"),
        ("val/reward_seed0", "val/reward_mean"),
        ("rewards/format_reward", "rewards/total_reward"),
        ("test/code/score", "test/avg/score"),
        ("eval/toxicity_score", "eval/rm_score"),
    ],
)
def test_whole_comes_before_its_parts(tmp_path: Path, part: str, whole: str) -> None:
    rows = [(at, reward / 2, reward) for at, reward in enumerate(REWARDS, 1)]
    [series] = read(write(tmp_path / "a.csv", (f"step,{part},{whole}", rows)))
    assert series.y_label == whole


def test_what_several_processes_print_counts_once(tmp_path: Path) -> None:
    text = "".join(
        f"[rank{rank}] step {at} | reward: {reward} | time: {100 + rank}\n"
        for at, reward in enumerate(REWARDS, 1)
        for rank in range(4)
    )
    [series] = read(write(tmp_path / "ranks.log", text))
    assert (series.reward.tolist(), series.axes["hours"][-1]) == (REWARDS, pytest.approx(1200 / 3600))


@pytest.mark.parametrize("mark", [" ", "\t", ",", " | "])
@pytest.mark.parametrize("above", ["# ", "#", "# made by plot.py\n# ", "The second run, of May, on 8 GPUs:\n"])
def test_head_behind_a_hash_or_under_prose(tmp_path: Path, above: str, mark: str) -> None:
    if mark == " " and above.startswith("The"):
        return
    rows = "".join(f"{at}{mark}{reward}\n" for at, reward in enumerate(REWARDS, 1))
    for name in ("a.csv", "a.txt"):
        [series] = read(write(tmp_path / name, f"{above}step{mark}reward\n{rows}"))
        assert (series.x_label, series.y_label, series.reward.tolist()) == ("step", "reward", REWARDS)
