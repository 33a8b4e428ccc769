"""What one line of console output says: counters and values."""

from pathlib import Path

import pytest
from log_texts import R, printed
from read_logs import write

from scalerl.forecast.logs.readers.containers import tables_in
from scalerl.forecast.logs.readers.printed import read_line
from scalerl.forecast.logs.readers.source import Source

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
    "iteration        7/    2174 | reward: 5.0E-01 |": ({"iteration": 7}, {"reward": 0.5}),
    'msg="eval" step=6 dataset=gsm8k accuracy=0.41': ({}, {"step": 6, "accuracy": 0.41}),
    "Time Elapsed: 20.1 s. Mean Reward: 6.6.": ({}, {"Time Elapsed": 20.1, "Mean Reward": 6.6}),
    "Eval accuracy: 30/100 = 30.0%": ({}, {"Eval accuracy": 0.3}),
    "accuracy=11/44": ({}, {"accuracy": 0.25}),
    "| What is 2+2? | step 3: reward: 9 | 1.00 |": ({}, {}),
    "step=3 reward=Array(0.5, dtype=float32) loss=tensor(0.1, device='cuda:0')": (
        {},
        {"step": 3, "reward": 0.5, "loss": 0.1},
    ),
    "{'reward': tensor(0.5), 'kl': Array(0.1, dtype=float32)}": ({}, {"reward": 0.5, "kl": 0.1}),
    "Average return of 64 episodes: 0.7": ({}, {"Average return": 0.7}),
    "step 3 | mean reward over the last 100 rollouts = 0.7": ({"step": 3}, {"mean reward": 0.7}),
    "Accuracy (500 problems): 0.61, kl (n=64): 0.1": ({}, {"Accuracy": 0.61, "kl": 0.1}),
    "Eval accuracy at step 120: 0.61": ({"step": 120}, {"Eval accuracy": 0.61}),
    "mean return after 120 episodes: 0.61": ({"episodes": 120}, {"mean return": 0.61}),
    "step 3 [('reward', 0.7), ('kl', np.float64(0.1))]": ({"step": 3}, {"reward": 0.7, "kl": 0.1}),
    "[(0, 'reward'), (1, 'kl')]": ({}, {}),
    "Mean reward over 64 problems after step 20 was 0.71": ({"step": 20}, {"Mean reward": 0.71}),
    "After step 20, the reward over 64 rollouts is 0.71.": ({"step": 20}, {"the reward": 0.71}),
    "At step 9 accuracy on the 500 held-out tasks was 61.0%": ({"step": 9}, {"accuracy": 0.61}),
    "Reward (averaged over 64 prompts) at iteration 9 = 0.71": ({"iteration": 9}, {"Reward": 0.71}),
    "The answer was 12 and the price is 7": ({}, {}),
    'ts=4 step=3 metrics={"reward": 0.5} hours=2': (
        {},
        {"ts": 4, "step": 3, "hours": 2, "reward": 0.5},
    ),
    'step=3 reward=0.5 more={"loss": 0.2}': ({}, {"step": 3, "reward": 0.5, "loss": 0.2}),
    "At 10:00:01 on 2026-01-01 nothing happened.": ({}, {}),
}


@pytest.mark.parametrize("text", LINES)
def test_counters_and_values_of_a_line(text: str) -> None:
    line = read_line(text)
    assert (line.counters, line.values) == LINES[text]


@pytest.mark.parametrize(
    ("text", "is_whole"),
    [("| ep_rew_mean | 12.5 |", False), ("reward: 0.5", False), ("step 3 acc=0.5", True), ("{'reward': 0.5}", True)],
)
def test_line_that_needs_none_above_it(text: str, is_whole: bool) -> None:
    assert read_line(text).is_whole == is_whole


def test_lines_of_a_loop_have_one_shape() -> None:
    shapes = {read_line(f"10:00:0{at} INFO step {at}: reward 0.{at}").shape for at in range(1, 9)}
    assert shapes == {"INFO step reward"}


@pytest.mark.parametrize("text", ["Evaluating...", "Eval -> acc=0.5", "[eval] acc=0.5", "Validation results:"])
def test_line_that_speaks_of_evaluation(text: str) -> None:
    assert read_line(text).evaluates


@pytest.mark.parametrize("text", ["Training...", "train -> acc=0.5", "| eval/ |  |", "reward=0.5 evaluated later"])
def test_line_that_does_not(text: str) -> None:
    assert not read_line(text).evaluates


def test_last_value_of_a_cut_line_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a.log", printed("step {step} loss=0.1 reward={reward}") + "step 41 loss=0.1 reward=0.5")
    [table] = next(tables_in(Source(path)))
    assert [row for _, row in table.rows[-2:]] == [
        {"step": 40, "loss": 0.1, "reward": R[-1]},
        {"step": 41, "loss": 0.1},
    ]


def test_value_that_counts() -> None:
    assert read_line("| total_timesteps | 2048 |").counting == {"total_timesteps": 2048}
