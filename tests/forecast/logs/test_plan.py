"""Which column is which, by which rule; how compute is counted; and what tells curves apart."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from log_texts import STEPS
from read_logs import Content, fault, planned, read, write

from scalerl.forecast.logs.series import cost_of_step, uneven_steps

# Compute

HOURS = (
    '"Relative Time (Process)","a - quality","a - quality__MIN","a - quality__MAX"',
    [(3600, 0.5, 0.5, 0.5), (7200, 0.6, 0, 1)],
)
STEP_TIMES = [
    row for s in (10, 20, 30) for row in ({"step": s, "step_time": 36.0}, {"step": s, "eval_reward": 0.01 * s})
]
STATE = json.dumps({"log_history": [*STEP_TIMES, {"step": 30, "total_flos": 1e9}]}, indent=2)
PRIME = [
    {"step": step, **row}
    for step in range(1, 5)
    for row in (
        {"progress/total_tokens": 100 * step, "progress/tokens": 100, "time/step": 36.0},
        {"reward/all/mean": 0.5, "reward/all/max": 0.9},
        *[{"eval/aime2024/avg@8": 0.1 * step, "eval/aime2024/completion_len/avg": 900}] * (step % 2 == 0),
    )
]
SPLIT = [{"step": step, "split": "train", "step_time": 3600.0} for step in (1, 2, 3, 4)]
SPLIT += [{"step": step, "split": "eval", "eval/acc": 0.1 + step / 20} for step in (0, 2)]
SEEDS = [(arm, seed, step, 3600, step / 10) for step in (1, 2, 3) for arm in "ab" for seed in (0, 1)]
VERL = [
    {"step": step, "data": {"timing_s/step": 3600, "val-core/a/acc/mean@1": at / 100}}
    for at, step in enumerate([*range(1, 26), *range(16, 41)])
]


# --gpus asks for GPU-hours, so that tokens give way. A step time is the mean since the row before.
@pytest.mark.parametrize(
    "content, gpus, x, y, compute",
    [
        (HOURS, 4, "gpu_hours", "quality", [4, 8]),
        (PRIME, None, "progress/total_tokens", "eval/aime2024/avg@8", [200, 400]),
        (PRIME, 100, "gpu_hours", "eval/aime2024/avg@8", [2, 4]),
        (STATE, 10, "gpu_hours", "eval_reward", [1, 2, 3]),
        (SPLIT, None, "hours", "eval/acc", [2]),
        (("arm,seed,step,step_time,reward", SEEDS), 2, "gpu_hours", "reward", [2, 4, 6, 2, 4, 6]),
        ("reward,step_time\n0.5,1800\n0.6,1800\n", None, "hours", "reward", [0.5, 1]),
        (VERL, None, "hours", "val-core/a/acc/mean@1", list(range(1, 41))),
    ],
)
def test_compute_is_built_and_filled_in(
    tmp_path: Path, content: Content, gpus: float | None, x: str, y: str, compute: list[float]
) -> None:
    series, *_ = read(write(tmp_path / "log", content), gpus=gpus)
    assert (series.x_label, series.y_label, series.compute.tolist()) == (x, y, pytest.approx(compute))


def _every(**gaps: int) -> list[dict[str, Any]]:
    """Rows of 40 steps in which a column has a value every so many steps."""
    named = {name.replace("__", "/"): gap for name, gap in gaps.items()}
    return [{"step": step} | {name: 0.5 for name, gap in named.items() if step % gap == 0} for step in range(1, 41)]


SET_ALONE = [{"step": step, "eval/aime": 0.1, "eval/aime/response_len": 900.0, "reward": 0.5} for step in range(8)]


@pytest.mark.parametrize(
    "columns, x, y",
    [
        (["step", "tokens", "flops", "gpu_hours", "reward"], "gpu_hours", "reward"),
        (["GPU Hours", "Pass-Rate"], "GPU Hours", "Pass-Rate"),
        (["step", "tokens", "total_flos", "reward"], "total_flos", "reward"),
        (["step", "train/reward", "eval/reward/std", "eval/reward/mean"], "step", "eval/reward/mean"),
        (["step", "test/env/all/reward/total", "test/env/all/correct", "correct"], "step", "test/env/all/correct"),
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
        (("compute,step,score,reward", [("8xH100", n, "good", 0.5) for n in range(3)]), "step", "reward"),
        # How many rows a column has
        (_every(val__a__pass_rate=40, val__b__reward=4), "step", "val/b/reward"),
        (_every(val__a__pass_rate=6, val__b__reward=1), "step", "val/b/reward"),
        (_every(eval__acc=40, reward=1), "step", "reward"),
        (_every(reward=1, accuracy=1, eval__acc=5), "step", "eval/acc"),
        (_every(reward=1, eval__acc=2)[:4], "step", "eval/acc"),
        (SET_ALONE, "step", "eval/aime"),
        ([{**row, "eval/aime": 12.0} for row in SET_ALONE], "step", "reward"),
    ],
)
def test_columns_are_recognised_in_the_order_documented(
    tmp_path: Path, columns: Any, x: str | None, y: str | None
) -> None:
    is_header = isinstance(columns, list) and isinstance(columns[0], str)
    content = (",".join(columns), [["0.5"] * len(columns)]) if is_header else columns
    path = write(tmp_path / "log", content)
    if x is None:
        assert "no column recognised as" in fault(path)
    else:
        [series] = read(path)
        assert (series.x_label, series.y_label) == (x, y)


def test_what_else_could_be_the_reward_is_named(tmp_path: Path) -> None:
    row = {"step": 1, "eval/math/acc": 0.2, "eval/math/score": 0.3, "eval/empty/acc": None}
    found = [planned(write(tmp_path / "a", given)).roles["y"] for given in ([row], _every(eval__acc=40, reward=1))]
    assert [(why.rule, why.others, why.too_few) for why in found] == [
        ("evaluation", ["eval/math/score"], {}),
        ("training", [], {"eval/acc": 1}),
    ]


# Which rule made a decision


@pytest.mark.parametrize(
    "header, row, options, role, expected",
    [
        ("global_step,reward", (1, 0.5), {}, "step", ("global_step", "named_step")),
        ("step,reward", (1, 0.5), {"y": "reward"}, "y", ("reward", "option")),
        ("step,eval/acc,reward", (1, 0.5, 0.4), {}, "y", ("eval/acc", "evaluation")),
        ("step,quality", (1, 0.5), {}, "y", ("quality", "only_numbers")),
        ("step,reward,timing_s_step", (1, 0.5, 36), {}, "hours", ("timing_s_step", "per_step")),
        ("step,reward,_runtime", (1, 0.5, 36), {}, "hours", ("_runtime", "elapsed")),
        ("step,reward,timestamp", (1, 0.5, 1.7e9), {}, "hours", ("timestamp", "clock")),
        ("step,reward,step_time", (1, 0.5, 36), {"gpus": 2}, "gpu_hours", ("hours", "times_gpus")),
        ("step,reward,num_tokens", (1, 0.5, 100), {}, "tokens", ("num_tokens", "total")),
        ("step,reward,perf/total_num_tokens", (1, 0.5, 100), {}, "tokens", ("perf/total_num_tokens", "per_step")),
        ("step,reward", (1, 0.5), {}, "label", ("file", "labels_that_explain")),
    ],
)
def test_rule_of_a_decision(
    tmp_path: Path, header: str, row: tuple[Any, ...], options: dict[str, Any], role: str, expected: tuple[str, str]
) -> None:
    plan = planned(write(tmp_path / "log.csv", (header, [row])), **options)
    assert (plan[role], plan.roles[role].rule) == expected


# What tells curves apart

BY_STEP = [(step, reward) for step, reward in STEPS[:8]]


@pytest.mark.parametrize(
    "columns, labels, apart, repeats",
    [
        ("arm,seed", [("a", 0), ("a", 1), ("b", 0)], ["file", "arm"], ["seed"]),
        ("recipe,run", [("a", "r1"), ("a", "r2"), ("b", "r3")], ["file", "recipe"], ["run"]),
        ("figure,curve", [("one", "x"), ("one", "y"), ("two", "z")], ["file", "curve"], []),
        ("benchmark,model", [("x", "p"), ("x", "q"), ("y", "p"), ("y", "q")], ["file", "model", "benchmark"], []),
        ("run,seed", [("r0", 0), ("r1", 1)], ["file"], ["seed"]),
        ("run,host", [("r0", "m"), ("r1", "m")], ["file", "run"], []),
    ],
)
@pytest.mark.parametrize("by_step", [False, True])
def test_as_few_labels_as_explain_the_order(
    tmp_path: Path, columns: str, labels: list[tuple[Any, ...]], apart: list[str], repeats: list[str], by_step: bool
) -> None:
    rows = [(*label, *row) for label in labels for row in BY_STEP]
    rows = sorted(rows, key=lambda row: row[-2]) if by_step else rows
    label = planned(write(tmp_path / "log.csv", (f"{columns},step,reward", rows))).roles["label"]
    assert (label.columns, label.others) == (apart, repeats)


def test_word_that_explains_nothing_separates_nothing(tmp_path: Path) -> None:
    rows = [(step, reward, "ok" if step % 3 else "slow") for step, reward in STEPS]
    [series] = read(write(tmp_path / "log.csv", ("step,reward,status", rows)))
    assert len(series.compute) == 40


# The same curve on every axis

AXES = "step,num_tokens,timing_s/step,cost,reward"


def _arm(path: Path, tokens: float, seconds: float) -> Path:
    return write(path, (AXES, [(s, tokens * s, seconds, 0.1 * s, r) for s, r in STEPS]))


def test_curve_is_known_on_every_axis_of_its_log(tmp_path: Path) -> None:
    [series] = read(_arm(tmp_path / "a.csv", 100, 36))
    assert (series.x_label, sorted(series.axes)) == ("num_tokens", ["cost", "hours", "step", "tokens"])
    for axis, unit in (("tokens", 100), ("hours", 0.01), ("step", 1), ("cost", 0.1)):
        moved = series.on(axis)
        assert (moved.compute.tolist(), moved.reward.tolist()) == (
            pytest.approx([unit * step for step, _ in STEPS]), [reward for _, reward in STEPS],
        )  # fmt: skip
        assert cost_of_step(series.axes, axis) == pytest.approx(unit)


def test_held_out_points_stay_on_their_axis(tmp_path: Path) -> None:
    rows = [(step, 9, reward, int(step > 30)) for step, reward in STEPS]
    [series] = read(write(tmp_path / "a.csv", ("step,step_time,reward,late", rows)), holdout=("late", "1"))
    moved = series.on("step")
    assert (len(series.holdout_compute), len(moved.holdout_compute), moved.compute[-1]) == (10, 0, 30)


def test_costs_of_steps_leave_out_step_zero(tmp_path: Path) -> None:
    [series] = read(write(tmp_path / "a.csv", ("step,hours,reward", [(s - 1, 0.5 * s, r) for s, r in STEPS])))
    assert cost_of_step(series.axes, "hours") == pytest.approx(0.5, rel=0.1)


def test_uneven_steps_are_noticed(tmp_path: Path) -> None:
    curves = read(_arm(tmp_path / "a.csv", 100, 36), _arm(tmp_path / "b.csv", 110, 72))
    assert uneven_steps(curves) == {"hours": pytest.approx(2)}
    assert uneven_steps(curves[:1]) == {}


def test_logs_are_read_on_the_first_axis_that_all_have(tmp_path: Path) -> None:
    paths = [
        _arm(tmp_path / "a.csv", 100, 36),
        write(tmp_path / "b.csv", ("step,step_time,reward", [(s, 9, r) for s, r in STEPS])),
    ]
    assert [series.x_label for series in read(*paths)] == ["hours", "hours"]
    assert [series.x_label for series in read(paths[0])] == ["num_tokens"]


def test_series_can_be_read_in_another_process(tmp_path: Path) -> None:
    path = _arm(tmp_path / "a.csv", 100, 36)
    [series] = pickle.loads(pickle.dumps(read(path)))
    assert (series.name, series.plan["y"].rule, len(series.axes["hours"])) == ("a", "training", 40)


@pytest.mark.parametrize(
    ("header", "is_clean"),
    [
        ("step,reward", True),
        ("step,gpu_hours,eval/acc,loss,entropy", True),
        ("step,reward,epoch", False),
        ("step,reward,acc", False),
        ("step,reward,seed", False),
        ("step,reward,time (min)", False),
        ("step,quality", False),
        ("tokens,reward", False),
    ],
)
def test_a_table_whose_names_say_all(tmp_path: Path, header: str, is_clean: bool) -> None:
    rows = [(at, *([at / 10] * header.count(","))) for at in range(1, 9)]
    assert planned(write(tmp_path / "log.csv", (header, rows))).is_clean == is_clean
