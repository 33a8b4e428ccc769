"""What a column or a line is, where its name says one thing and its values another; the numbers are made up."""

import json
from pathlib import Path
from typing import Any

import pytest
from log_texts import STEPS, R, cells
from read_logs import candidates, fault, kinds, read, write

from scalerl.forecast.logs import Series


def points(series: Series) -> list[tuple[float, float]]:
    return list(zip(series.compute.tolist(), series.reward.tolist(), strict=True))


# The axis


@pytest.mark.parametrize("constant", ["steps", "frames", "total_timesteps"])
def test_constant_step_gives_way_to_a_counter_that_rises(tmp_path: Path, constant: str) -> None:
    rows = [(900, episode, reward) for episode, reward in STEPS]
    [series] = read(write(tmp_path / "log.csv", (f"{constant},episode,reward", rows)))
    assert series.x_label == "episode"
    assert points(series) == STEPS


def test_nameless_counter_may_begin_anew(tmp_path: Path) -> None:
    counts = [*range(1, 21), *range(15, 35)]
    rows = list(zip(counts, R, [7, 3] * 20, strict=True))
    [series] = read(write(tmp_path / "log.csv", ("runde,eval_score,plies", rows)))
    assert series.x_label == "runde"
    assert {"step_by_values", "superseded"} <= {*kinds(series)}
    assert points(series) == [*zip(counts[:14], R[:14], strict=True), *zip(counts[20:], R[20:], strict=True)]


def test_numbers_that_jump_are_no_counter(tmp_path: Path) -> None:
    rows = [(3 * step + (step * 7) % 5, reward) for step, reward in STEPS]
    rows[9] = rows[4]
    [series] = read(write(tmp_path / "log.csv", ("plies,reward", rows)))
    assert series.x_label == "step"


# Attempts


def _times(num: int) -> list[str]:
    return [f"2026-03-{1 + hour // 24:02}T{hour % 24:02}:00:00" for hour in range(num)]


def test_attempts_under_a_time_of_day(tmp_path: Path) -> None:
    counts = [*range(1, 17), *range(10, 31), 1, 1]
    rewards = [*R[:16], *R[9:30], 1.0, 1.0]
    rows = list(zip(_times(len(counts)), counts, rewards, [40 + 7 * at % 11 for at in counts], strict=True))
    first, *others = read(write(tmp_path / "log.csv", ("timestamp,global_iter,eval_score,wins", rows)))
    assert first.reward.tolist() == R[:30]
    assert {"superseded", "attempts"} <= {*kinds(first)}
    assert all(len(series.reward) <= 1 for series in others)


def test_attempts_of_a_step_or_two_are_refused(tmp_path: Path) -> None:
    rows = [(step, round(0.3 + at / 50, 3)) for at, step in enumerate([1, 1, 1, 1, 2, 1, 2, 1, 2])]
    said = fault(write(tmp_path / "log.csv", ("step,reward", rows)))
    assert "6 attempts of at most 2 steps" in said


def test_model_before_training_may_be_evaluated_again(tmp_path: Path) -> None:
    [series] = read(write(tmp_path / "log.csv", ("step,accuracy", [(0, 0.2), *STEPS, (0, 0.22)])))
    assert points(series) == STEPS
    assert series.start == pytest.approx(0.21)


# Labels


def test_numbers_that_go_round_name_no_runs(tmp_path: Path) -> None:
    rows = [(step, 1 + at % 8, reward) for at, (step, reward) in enumerate(STEPS)]
    [series] = read(write(tmp_path / "log.csv", ("episode,trial,reward", rows)))
    assert points(series) == STEPS


def test_trials_that_are_logged_together_are_runs(tmp_path: Path) -> None:
    rows = [(step, trial, round(reward - trial / 50, 4)) for step, reward in STEPS for trial in (1, 2, 3)]
    curves = read(write(tmp_path / "log.csv", ("step,trial,reward", rows)))
    assert [len(series.reward) for series in curves] == [40, 40, 40]


def test_columns_that_differ_at_a_resumed_step_are_no_settings(tmp_path: Path) -> None:
    counts = [*range(1, 31), *range(25, 35)]
    rows = [(count, R[at], (7 * at) % 18) for at, count in enumerate(counts)]
    [series] = read(write(tmp_path / "log.csv", ("step,reward,wins", rows)))
    assert len(series.reward) == 34


def test_facts_name_the_evaluations_only_where_they_are_read(tmp_path: Path) -> None:
    rows = [(step, "train", reward) for step, reward in STEPS] + [(40, "eval", 0.5), (40, "eval", 0.7)]
    [series] = read(write(tmp_path / "log.csv", ("step,phase,reward", rows)))
    assert series.y_label == "reward"
    assert "evaluations_apart" not in kinds(series)


def test_episodes_of_an_evaluation_come_before_training(tmp_path: Path) -> None:
    rows: list[tuple[int, int, str, float]] = []
    for episode, reward in STEPS:
        rows.append((episode, 1 + episode % 5, "training", reward / 2))
        if episode % 5 == 0:
            rows += [(episode, 1, "evaluation", round(reward + at / 100, 3)) for at in (-2, 0, 2)]
    [series] = read(write(tmp_path / "log.csv", ("episode,trial,phase,reward_score", rows)))
    assert series.y_label == "evaluation/reward_score"
    assert "evaluations_apart" in kinds(series)
    assert series.compute.tolist() == [episode for episode in range(5, 41, 5) for _ in range(3)]


# Rewards


@pytest.mark.parametrize("name", ["AverageTestEpRet", "test/ep_ret", "eval_ep_rew", "TestReturn"])
def test_returns_of_tests_are_evaluations(tmp_path: Path, name: str) -> None:
    rows = [(step, reward - 0.1, reward) for step, reward in STEPS]
    [series] = read(write(tmp_path / "log.csv", (f"epoch,AverageEpRet,{name}", rows)))
    assert series.y_label == name
    assert points(series) == STEPS


@pytest.mark.parametrize("name", ["rollout/return", "mean_ep_ret", "train/episode_return", "AverageEpisodicReward"])
def test_names_whose_words_all_say_reward_come_first(tmp_path: Path, name: str) -> None:
    rows = [(step, 3 - reward, reward, 9 * reward) for step, reward in STEPS]
    [series] = read(write(tmp_path / "log.csv", (f"step,agent_return,{name},shaping_reward", rows)))
    assert series.y_label == name


@pytest.mark.parametrize("name", ["reward/hard_pass_rate", "agent_success_rate", "tool_solve_rate"])
def test_rates_of_something_are_asked_about_beside_a_reward(tmp_path: Path, name: str) -> None:
    rows = [{"step": step, "episode_reward": 90 * rate + step % 3, name: rate, "kl": 0.1} for step, rate in STEPS]
    log = write(tmp_path / "log.jsonl", rows)
    assert [each.name for each in candidates(log)] == [name, "episode_reward"]
    alone = write(tmp_path / "alone.csv", cells(f"step,{name},kl", [(s, r, 0.1) for s, r in STEPS]))
    assert [points(series) for series in read(alone)] == [STEPS]


# Lines of a text


SLOW = "SAMPLING WARNING\n  Sampling slow: {slow}s, steps={slow}\n"
ANSWER = (
    "[eval] A lamp burns for {step} hours on 3 litres and then it is filled up again -> it burns for 62 hours more\n"
    "So she improves her accuracy by 10.\nFinal answer: {step}\n"
)


def test_step_is_that_of_the_line_with_the_reward(tmp_path: Path) -> None:
    text = ""
    for step, reward in STEPS:
        warnings = [SLOW.format(slow=180 + (37 * step * turn) % 150) for turn in range(1, 9)]
        text += "".join(warnings) + f"[step {25 * step}] avg_loss={1 - reward:.4f} acc={reward}\n"
    [series] = read(write(tmp_path / "train.log", text))
    assert points(series) == [(25 * step, reward) for step, reward in STEPS]


def test_answers_under_an_evaluation_are_no_evaluations(tmp_path: Path) -> None:
    text = ""
    for step, reward in STEPS:
        samples = "".join(f"Final answer: {step + at}, reward is {reward / 2}\n" for at in range(3))
        text += f"{samples}[step {step}] avg_loss=0.1 acc={reward}\n{ANSWER.format(step=step)}"
    [series] = read(write(tmp_path / "train.log", text))
    assert series.y_label == "acc"
    assert points(series) == STEPS


@pytest.mark.parametrize("heading", ["Evaluation:", "Running validation on 500 problems ...", "=== eval ==="])
def test_short_line_above_values_makes_them_evaluations(tmp_path: Path, heading: str) -> None:
    text = ""
    for step, reward in STEPS:
        text += f"step {step} reward: {reward / 2}\n{heading}\naccuracy: {reward}\n"
    [series] = read(write(tmp_path / "train.log", text))
    assert series.y_label == "eval/accuracy"
    assert points(series) == STEPS


BOX = """
| epoch              | {epoch} |
| test/episode       | {tested} |
| test/success_rate  | {reward} |
| train/episode      | {trained} |
| train/success_rate | {half} |
--------------------------------
"""


def test_counter_of_evaluations_is_no_axis(tmp_path: Path) -> None:
    text = "n_cycles: 10\n"
    for step, reward in STEPS:
        text += BOX.format(epoch=step, tested=50 * step, reward=reward, trained=20 * step, half=reward / 2)
    [series] = read(write(tmp_path / "train.log", text))
    assert (series.x_label, series.y_label) == ("epoch", "test/success_rate")
    assert points(series) == STEPS


def test_counter_of_evaluations_is_better_than_none(tmp_path: Path) -> None:
    text = "".join(f"eval_step={10 * step} accuracy={reward}\n" for step, reward in STEPS)
    [series] = read(write(tmp_path / "eval.log", text))
    assert points(series) == [(10 * step, reward) for step, reward in STEPS]


# Tables in a text, and what is no history


def test_table_of_checkpoints_in_a_text(tmp_path: Path) -> None:
    rows = "".join(f"  grpo-ckpt-{step}      {100 * rate:.1f}%    {100 * rate + 20:.1f}%\n" for step, rate in STEPS)
    text = f"How often the answer is right\n  checkpoint   pass@1   pass@4\n  base     12.0%   33.0%\n{rows}"
    [series] = read(write(tmp_path / "eval.txt", text))
    assert series.y_label == "pass@1"
    assert series.compute.tolist() == [step for step, _ in STEPS]
    assert series.reward.tolist() == pytest.approx(R, abs=1e-3)
    assert series.start == pytest.approx(0.12)


@pytest.mark.parametrize("name", ["grpo-ckpt-{}", "step_{}"])
def test_two_tables_of_checkpoints_are_not_joined(tmp_path: Path, name: str) -> None:
    rows = "".join(f"  {name.format(step)}      {100 * rate:.1f}%    60.0%\n" for step, rate in STEPS)
    table = f"  checkpoint   pass@1   pass@4\n{rows}"
    assert "one table" in fault(write(tmp_path / "eval.txt", f"right\n{table}\nwith tags\n{table}"))


SETTINGS = ["model_k64_exp8.pt", "model_k64_exp16.pt", "model_k128_exp8.pt", "model_k128_exp16.pt", "model_k32_exp8.pt"]


@pytest.mark.parametrize("header", ["weights,best_val_loss,frac", "weights,alpha,accuracy"])
def test_names_that_differ_in_several_numbers_are_settings(tmp_path: Path, header: str) -> None:
    rows = [(name, 0.9 - at / 20, 0.5 + at / 30) for at, name in enumerate(SETTINGS)]
    assert "one row per run (weights)" in fault(write(tmp_path / "sweep.csv", (header, rows)))


def test_lists_of_rewards_in_cells_are_one_row_per_run(tmp_path: Path) -> None:
    text = "exp,run,mean_all,loss_mean,rewards\n"
    for size in (32, 64):
        for run in range(1, 6):
            rewards = [round(reward + run / 100, 3) for reward in R]
            text += f'{size}x2,{run},{sum(rewards) / 40:.4f},0.{run}3,"{rewards}"\n'
    assert "one row per run" in fault(write(tmp_path / "results.csv", text))


YAML = """
data:
  train_files: data/train.parquet
  train_batch_size: 64
model:
  path: models/small
  lora_rank: 8
optim:
  lr: 1e-5
"""
ANSWERS = "solution: 'work: {at}'\nfacts: {{'agent': {at}, 'income': {income}}}\nsr=0.5 buf=2.0 total=0.{at}\n"


@pytest.mark.parametrize(
    "text",
    [
        YAML,
        "10:00:01 | ======\n10:00:02 | settings:\n" + '{\n  "batch_size": 64,\n  "epochs": 300,\n  "lr": 0.1\n}\n',
        "".join(ANSWERS.format(at=at, income=900 + 37 * at % 100) for at in range(1, 19)),
    ],
)
def test_settings_and_answers_are_called_so(tmp_path: Path, text: str) -> None:
    said = fault(write(tmp_path / "run.log", text))
    assert "configuration" in said


# What speaks against a column that is named like a reward


def chosen(path: Path, header: str, rows: list[tuple[Any, ...]]) -> str:
    [series] = read(write(path / "log.csv", (header, rows)))
    return series.y_label


@pytest.mark.parametrize(
    ("header", "values", "y"),
    [
        ("step,score,avg_score", lambda step, rate: (rate, 0.9 * rate), "score"),
        ("step,eval/team/reward,eval/reward", lambda step, rate: (rate / 3, rate), "eval/reward"),
        ("step,success,reward", lambda step, rate: (int(rate > 0.4), rate), "reward"),
        ("step,Training reward,Testing reward", lambda step, rate: (rate, 0.9 * rate), "Testing reward"),
        ("step,train_acc,dev_acc", lambda step, rate: (rate, 0.9 * rate), "dev_acc"),
        ("step,accuracy,parser_success_rate", lambda step, rate: (rate, rate * (step > 30)), "accuracy"),
    ],
)
def test_the_whole_and_what_varies_come_first(tmp_path: Path, header: str, values: Any, y: str) -> None:
    assert chosen(tmp_path, header, [(step, *values(step, rate)) for step, rate in STEPS]) == y


def test_a_rate_of_nothing_but_zeros_is_asked_about_after_the_reward(tmp_path: Path) -> None:
    rows = [(step, rate * (step > 30), rate) for step, rate in STEPS]
    log = write(tmp_path / "log.csv", ("step,accuracy,reward", rows))
    assert [each.name for each in candidates(log)] == ["reward", "accuracy"]


def test_accuracies_of_two_benchmarks_are_asked_about(tmp_path: Path) -> None:
    rows = [(step, rate, rate / 2) for step, rate in STEPS]
    log = write(tmp_path / "log.csv", ("step,gsm8k_accuracy,math_accuracy", rows))
    assert [each.name for each in candidates(log)] == ["gsm8k_accuracy", "math_accuracy"]


def test_reward_beside_one_with_another_word_in_brackets_is_asked_about(tmp_path: Path) -> None:
    rows = [(step, rate, rate / 2) for step, rate in STEPS]
    log = write(tmp_path / "log.csv", ("step,reward (cost),reward (tokens)", rows))
    assert [each.name for each in candidates(log)] == ["reward (cost)", "reward (tokens)"]


# What counts


@pytest.mark.parametrize(
    ("header", "values", "x"),
    [
        ("training_steps,accuracy", lambda step, rate: (100 * step, rate), "training_steps"),
        ("time,reward", lambda step, rate: (12.5 * step, rate), "time"),
        ("hours_trained,reward", lambda step, rate: (step / 2, rate), "hours"),
        ("Timesteps,reward", lambda step, rate: (3000 + 37 * step**3 % 1013, rate), "step"),
    ],
)
def test_what_rises_counts(tmp_path: Path, header: str, values: Any, x: str) -> None:
    [series] = read(write(tmp_path / "log.csv", (header, [values(step, rate) for step, rate in STEPS])))
    assert (series.x_label, series.reward.tolist()) == (x, R)


def test_epochs_of_training_and_evaluation_count(tmp_path: Path) -> None:
    rows = [(step, kind, 1 - rate, rate) for step, rate in STEPS for kind in ("train", "val")]
    [series] = read(write(tmp_path / "log.csv", ("epoch,phase,loss,accuracy", rows)))
    assert (series.x_label, series.y_label, series.reward.tolist()) == ("epoch", "val/accuracy", R)


# Too few


def test_a_folder_of_four_checkpoints_says_how_many(tmp_path: Path) -> None:
    for step, rate in STEPS[:4]:
        write(tmp_path / f"step_{step}.json", json.dumps({"sft_accuracy": rate, "rl_accuracy": rate / 2}))
    said = fault(tmp_path)
    assert "4 values" in said
    assert "needs 6" in said


def test_five_values_without_a_telling_name_are_asked_about(tmp_path: Path) -> None:
    document = {f"step-{100 * step:06}": {"loose": rate, "strict": rate / 2} for step, rate in STEPS[:5]}
    log = write(tmp_path / "a.json", json.dumps(document))
    assert [each.name for each in candidates(log)] == ["loose", "strict"]


def test_records_without_a_step_that_say_the_same_are_results(tmp_path: Path) -> None:
    lines = [f"10:00 INFO Run {at:2} - accuracy: 100.00%, reward: 0.95, steps: {6 + at / 9:.2f}" for at in range(1, 11)]
    assert "all are equal" in fault(write(tmp_path / "a.log", "\n".join(lines) + "\n"))


def test_a_warning_with_a_traceback_is_no_crash(tmp_path: Path) -> None:
    lines = [f"WARN {text}" for text in ("Traceback (most recent call last):", *["  File x"] * 9, "ImportError: no y")]
    later = [f"loaded part number {at} of the model" for at in range(40)]
    assert "failed" not in fault(write(tmp_path / "a.log", "\n".join([*lines, *later]) + "\n"))
    assert "failed" in fault(write(tmp_path / "b.log", "\n".join(lines) + "\n"))
