"""Which column is which, by which rule; how compute is counted; and what tells curves apart."""

import json
from pathlib import Path
from typing import Any

import pytest
from log_texts import STEPS
from read_logs import Content, fault, names, planned, read, write

from scalerl.logs.plan import OUR_RULES, RULES

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
    row = {
        "step": 1,
        "eval/aime/acc": 0.1,
        "eval/math/acc": 0.2,
        "eval/math/score": 0.3,
        "eval/empty/acc": None,
        "reward": 0.4,
    }
    found = [planned(write(tmp_path / "a", given)).roles["y"] for given in ([row], _every(eval__acc=40, reward=1))]
    assert [(why.rule, why.others, why.too_few) for why in found] == [
        ("evaluation", ["eval/math/acc", "eval/math/score"], {}),
        ("training", [], {"eval/acc": 1}),
    ]
