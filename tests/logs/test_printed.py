"""What one line of console output says: counters and values."""

import pytest

from scalerl.logs.printed import read_line

LINES = {
    "step:12 - actor/loss:0.1 - acc/mean@1:np.float64(0.5)": ({}, {"step": 12, "actor/loss": 0.1, "acc/mean@1": 0.5}),
    "{'loss': 0.1, 'reward': '0.4', 'ok': True}": ({}, {"loss": 0.1, "reward": 0.4}),
    "Global step 12: {'reward': 0.4}": ({"step": 12}, {"reward": 0.4}),
    "Step 12 | Reward: 0.35 | Time: 36.00s": ({"step": 12}, {"Reward": 0.35, "Time": 36}),
    "[12/50] acc=50.0%": ({"/50": 12}, {"acc": 0.5}),
    "[2000] loss=0.1": ({"/[]": 2000}, {"loss": 0.1}),
    "iter 12 loss 0.1 in 5ms": ({"iteration": 12}, {"loss": 0.1}),
    "  - Avg Reward: 0.27": ({}, {"Avg Reward": 0.27}),
    "7%|#  | 3/40 [00:09<01:00, 2.0s/it, reward=0.3]": ({"/40": 3}, {"reward": 0.3}),
    "Epoch 1 | Batch 4 | train acc 12/512 (25.0%)": ({"epoch": 1, "batch": 4}, {"train acc": 0.25}),
    "Epoch:[1/1](12/9751), Reward: -1.8": ({"epoch": 1, "/9751": 12}, {"Reward": -1.8}),
    "Evaluated math500 in 3.2s (Avg@4=0.5)": ({}, {"math500/avg@4": 0.5}),
    "x {'correct': 3, 'wrong': 1}": ({}, {"accuracy": 0.75, "num_samples": 4}),
    "At 10:00:01 on 2026-01-01 nothing happened.": ({}, {}),
}


@pytest.mark.parametrize("text", LINES)
def test_counters_and_values_of_a_line(text: str) -> None:
    line = read_line(text, is_cut=False)
    assert (line.counters, line.values) == LINES[text]


@pytest.mark.parametrize(
    ("text", "is_alone"),
    [("| ep_rew_mean | 12.5 |", True), ("reward: 0.5 of run", False), ("step 3 acc=0.5", False)],
)
def test_value_that_is_alone(text: str, is_alone: bool) -> None:
    assert read_line(text, is_cut=False).is_alone == is_alone


def test_last_value_of_a_cut_line_is_left_out() -> None:
    assert read_line("step 3 loss=0.1 reward=0.5", is_cut=True).values == {"loss": 0.1}


def test_value_that_counts() -> None:
    assert read_line("| total_timesteps | 2048 |", is_cut=False).counting == {"total_timesteps": 2048}
