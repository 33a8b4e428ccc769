"""Rules by which columns and rows are read, each on a made log that was once read wrongly without a word."""

import json
from pathlib import Path
from typing import Any

import pytest
from log_texts import STEPS
from read_logs import candidates, fault, kinds, read, write

REWARDS = [reward for _, reward in STEPS]


def rewards(path: Path, **options: Any) -> tuple[str, list[float]]:
    """Return the name and the values of the only curve of a log."""
    [series] = read(path, **options)
    return series.y_label, [round(reward, 4) for reward in series.reward.tolist()]


def around(reward: float) -> list[float]:
    """Return answers whose mean is a reward."""
    return [reward - 0.1, reward, reward + 0.1]


# A list under a reward's name is its mean


def test_list_of_rewards_in_json(tmp_path: Path) -> None:
    log = [{"step": step, "rewards": around(reward), "lengths": [1, 2, 3]} for step, reward in STEPS]
    assert rewards(write(tmp_path / "a.jsonl", log)) == ("rewards", REWARDS)
    assert rewards(write(tmp_path / "a.json", json.dumps(log))) == ("rewards", REWARDS)


@pytest.mark.parametrize("gap", [", ", ",", " ", "  "])
@pytest.mark.parametrize("mark", ["=", ": ", " = "])
def test_list_of_rewards_in_text(tmp_path: Path, gap: str, mark: str) -> None:
    lines = [f"step {step} rewards{mark}[{gap.join(f'{each:.4f}' for each in around(r))}] lr=0.1" for step, r in STEPS]
    assert rewards(write(tmp_path / "a.log", "\n".join(lines) + "\n")) == ("rewards", REWARDS)


# What is no reward


@pytest.mark.parametrize(
    "name", ["best_reward", "reward_so_far", "reward_iqr", "accuracy_ci", "reward_gain", "attempt"]
)
def test_what_is_no_reward_beside_one(tmp_path: Path, name: str) -> None:
    log = write(tmp_path / "a.csv", (f"step,{name},score", [(step, 9 - step / 50, r) for step, r in STEPS]))
    assert rewards(log) == ("score", REWARDS)


@pytest.mark.parametrize("name", ["correct", "num_correct", "solved", "successes", "wins"])
def test_counts_are_no_rewards(tmp_path: Path, name: str) -> None:
    rows = [(step, round(400 * reward), reward) for step, reward in STEPS]
    assert rewards(write(tmp_path / "a.csv", (f"step,{name},accuracy", rows))) == ("accuracy", REWARDS)
    assert name not in [each.name for each in candidates(write(tmp_path / "b.csv", (f"step,{name},x,y", [
        (step, count, 7.5 * reward, 100 * reward) for step, count, reward in rows])))]  # fmt: skip


def test_a_mean_of_the_last_steps_comes_after_that_of_each(tmp_path: Path) -> None:
    rows = [(step, reward / 2, reward) for step, reward in STEPS]
    assert rewards(write(tmp_path / "a.csv", ("step,reward_last_50,mean_reward", rows))) == ("mean_reward", REWARDS)


@pytest.mark.parametrize("names", ["exploration_rate,hit_rate", "p_hat_ema,q_ema", "entry_frac,exit_frac"])
def test_a_rate_says_what_is_measured_and_never_which_run(tmp_path: Path, names: str) -> None:
    log = write(tmp_path / "a.csv", (f"step,{names}", [(step, reward, reward / 2) for step, reward in STEPS]))
    assert "reward" in fault(log)


# Kinds of rows


@pytest.mark.parametrize("column", ["kind", "what", "source"])
@pytest.mark.parametrize("training", ["train", "rollout", "training"])
def test_kinds_of_rows_under_any_name(tmp_path: Path, column: str, training: str) -> None:
    rows = [(step, word, reward + lift) for step, reward in STEPS for word, lift in ((training, 0.2), ("eval", 0))]
    [series] = read(write(tmp_path / "a.csv", (f"step,{column},accuracy", rows)))
    assert (series.y_label, series.reward.tolist()) == ("eval/accuracy", REWARDS)
    assert "evaluations_apart" in kinds(series)


# Axes by their values


@pytest.mark.parametrize("unit", [1, 1000])
def test_seconds_since_1970_are_a_clock_under_any_name(tmp_path: Path, unit: int) -> None:
    rows = [((1_700_000_000 + 360 * step) * unit, reward) for step, reward in STEPS]
    [series] = read(write(tmp_path / "a.csv", ("logged_on,reward", rows)))
    assert series.x_label == "hours"
    assert series.compute[-1] - series.compute[0] == pytest.approx(0.1 * (STEPS[-1][0] - STEPS[0][0]))


@pytest.mark.parametrize("name", ["train_h", "hours_so_far_h", "run_hrs"])
def test_hours_under_any_name(tmp_path: Path, name: str) -> None:
    [series] = read(write(tmp_path / "a.csv", (f"{name},reward", [(step / 10, reward) for step, reward in STEPS])))
    assert series.x_label == "hours"
    assert series.compute[-1] == STEPS[-1][0] / 10


@pytest.mark.parametrize("before", [[], [("base", 0.1)]])
def test_names_with_a_rising_number_are_steps(tmp_path: Path, before: list[tuple[str, float]]) -> None:
    rows = [*before, *((f"qwen-ckpt-{100 * step}", reward) for step, reward in STEPS)]
    [series] = read(write(tmp_path / "a.csv", ("checkpoint_name,accuracy", rows)))
    assert (series.x_label, series.compute[-1]) == ("step", 100 * STEPS[-1][0])
    assert series.start == (before[0][1] if before else None)


def test_the_length_of_an_episode_is_no_step(tmp_path: Path) -> None:
    rows = [(step, 200 - 7 * (step % 5), reward) for step, reward in STEPS]
    [series] = read(write(tmp_path / "a.csv", ("episode,steps,reward", rows)))
    assert (series.x_label, len(series.compute)) == ("episode", len(STEPS))


def test_seeds_as_keys_are_no_steps(tmp_path: Path) -> None:
    document = {"results": {f"seed_{at}": {"accuracy": reward, "f1": reward} for at, reward in STEPS}}
    assert "no history" in fault(write(tmp_path / "a.json", json.dumps(document)))


# Text


def test_records_with_a_step_come_before_loose_values(tmp_path: Path) -> None:
    lines = ["loading took accuracy=0.9", "reward=7", "vllm: score=0.5 tokens=3"]
    for step, reward in STEPS:
        lines += [f"step={step} loss=0.1 reward={reward} kl=0.02", f"sample reward={reward > 0.4:d}", "score=3"]
    assert rewards(write(tmp_path / "a.log", "\n".join(lines) + "\n")) == ("reward", REWARDS)


def test_table_in_the_html_of_a_notebook(tmp_path: Path) -> None:
    rows = "".join(f"<tr><td>{step}</td><td>0.1</td><td>{reward}</td></tr>" for step, reward in STEPS)
    html = f"<table><thead><tr><th>Step</th><th>Training Loss</th><th>reward</th></tr></thead>{rows}</table>"
    cell = {"cell_type": "code", "outputs": [{"data": {"text/html": [html]}, "output_type": "display_data"}]}
    assert rewards(write(tmp_path / "a.ipynb", json.dumps({"cells": [cell], "nbformat": 4}))) == ("reward", REWARDS)


# Runs


@pytest.mark.parametrize("times", [2, 3, 5])
def test_restarts_are_never_averaged(tmp_path: Path, times: int) -> None:
    rows = [(step, round(reward + 0.01 * at, 4)) for at in range(times) for step, reward in STEPS]
    curves = read(write(tmp_path / "a.csv", ("step,reward", rows)))
    assert [series.reward.tolist() for series in curves] == [
        [round(reward + 0.01 * at, 4) for reward in REWARDS] for at in range(times)
    ]


@pytest.mark.parametrize(
    "names",
    [["grpo-lr1e-5", "grpo-lr1e-6"], ["a_clip0.2_kl0", "a_clip0.28_kl0"], ["qwen-7b-s1-x", "qwen-7b-s1-y", "llama"]],
)
def test_names_of_runs_keep_what_tells_them_apart(tmp_path: Path, names: list[str]) -> None:
    rows = [(name, step, reward + 0.01 * at) for at, name in enumerate(names) for step, reward in STEPS]
    curves = read(write(tmp_path / "a.csv", ("run,step,reward", rows)))
    assert [series.name for series in curves] == names


# What is no history says what it is


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", json.dumps({"model": "qwen", "lr": 1e-6, "batch_size": 64, "seed": 1}), "give what the run logged"),
        ("a.jsonl", [{"id": at, "question": f"what is {at}?", "f1": at % 7 / 7} for at in range(40)], "row per answer"),
        ("a.json", json.dumps([{"accuracy": 0.5}, {"accuracy": 0.6}]), "no history"),
        ("a.log", "step 1\nTraceback (most recent call last):\n  File x\nRuntimeError: no memory\n", "no memory"),
        ("a.ipynb", json.dumps({"cells": [{"cell_type": "code", "outputs": []}], "nbformat": 4}), "without output"),
    ],
)
def test_what_is_no_history_says_what_it_is(tmp_path: Path, name: str, content: Any, said: str) -> None:
    assert said in fault(write(tmp_path / name, content))


def test_a_sweep_of_settings_is_no_history(tmp_path: Path) -> None:
    sweep = [(width, depth, rate) for width in (64, 128, 256) for depth in (1, 2) for rate in (1e-3, 3e-4, 1e-4)]
    rows = [(*settings, 40 + at % 7, 0.02 + at % 5 / 100, at == 3) for at, settings in enumerate(sweep)]
    log = write(tmp_path / "a.csv", ("width,depth,rate,best_epoch,valid_recall@10,selected", rows))
    assert "one row per run (width, depth, rate" in fault(log)


def test_a_row_for_each_run_with_few_results_is_refused_before_a_question(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"what": f"{'abcdefghijklmno'[at]} was run"} for at in range(1, 15)]
    rows[3] |= {"eval/math/acc": 0.4, "eval/code/acc": 0.3}
    rows[6] |= {"eval/math/acc": 0.45, "eval/code/acc": 0.32}
    rows[9] |= {"eval/math/acc": 0.5, "eval/code/acc": 0.35}
    assert "one row per run" in fault(write(tmp_path / "runs.jsonl", rows))
    for row in rows:
        del row["what"]
    assert "no history" in fault(write(tmp_path / "results.jsonl", rows))


@pytest.mark.parametrize("names", ["recall@10,ndcg@10,cold_recall@10", "hits@5,hits@10"])
def test_measures_among_the_best_are_no_runs(tmp_path: Path, names: str) -> None:
    rows = [(step, reward, reward / 2, reward / 3)[: names.count(",") + 2] for step, reward in STEPS]
    log = write(tmp_path / "a.csv", (f"step,{names}", rows))
    assert "reward" in fault(log)


def test_seconds_of_each_row_are_no_clock(tmp_path: Path) -> None:
    rows = [(step, 9 + step % 3, reward) for step, reward in STEPS]
    [series] = read(write(tmp_path / "a.csv", ("step,elapsed_time,reward", rows)))
    assert series.x_label == "step"


def test_numbers_in_place_of_names(tmp_path: Path) -> None:
    rows = [(step, 0, "left", reward, reward / 7) for step, reward in STEPS]
    assert "line with names" in fault(write(tmp_path / "a.csv", ("0,0,left,0.31,0.02", rows)))


def test_right_and_wrong_answers_with_their_questions(tmp_path: Path) -> None:
    rows = [{"i": at, "question": f"Sum of {at} and {at * at}?", "correct": at % 3 == 0} for at in range(40)]
    assert "row per answer" in fault(write(tmp_path / "a.json", json.dumps({"accuracy": 0.4, "per_q": rows})))


def test_fitness_of_generations(tmp_path: Path) -> None:
    rows = [(step, 9 + reward, 100 * reward) for step, reward in STEPS]
    [series] = read(write(tmp_path / "a.csv", ("Generation,Best_Fitness,Avg_Fitness", rows)))
    assert (series.x_label, series.y_label) == ("Generation", "Avg_Fitness")


def test_dates_are_no_steps(tmp_path: Path) -> None:
    rows = [(f"2026-04-{step:02}", reward) for step, reward in STEPS[:20]]
    [series] = read(write(tmp_path / "a.csv", ("date,accuracy", rows)))
    assert (series.x_label, series.compute[-1]) == ("hours", 20 * 24)


ITEMS = ("problem_id", "layer", "k", "params_b", "context_length", "temperature", "id")


@pytest.mark.parametrize("column", ITEMS)
@pytest.mark.parametrize("is_sorted", [True, False])
def test_a_row_for_each_item_is_no_history(tmp_path: Path, column: str, is_sorted: bool) -> None:
    rows = [(3 * step + 1, reward, 7 - step % 3) for step, reward in STEPS]
    rows = rows if is_sorted else [*rows[20:], *rows[:20]]
    log = write(tmp_path / "a.csv", (f"{column},accuracy,turns", rows))
    assert f"one row per {column}" in fault(log)
    [series] = read(log, x=column)
    assert series.x_label == column


def test_an_item_beside_a_step_is_no_item(tmp_path: Path) -> None:
    rows = [(step, 900 - step, reward) for step, reward in STEPS]
    [series] = read(write(tmp_path / "a.csv", ("step,id,reward", rows)))
    assert (series.x_label, series.reward.tolist()) == ("step", REWARDS)


def test_seeds_at_one_step_are_results(tmp_path: Path) -> None:
    rows = [(seed, reward, 1000) for seed, reward in STEPS]
    assert "one row per run (seed)" in fault(write(tmp_path / "a.csv", ("seed,final_reward,steps", rows)))


@pytest.mark.parametrize(("column", "is_said"), [("cycle", True), ("index", False)])
def test_whole_numbers_that_rise_are_said_to_be_the_step(tmp_path: Path, column: str, is_said: bool) -> None:
    [series] = read(write(tmp_path / "a.csv", (f"{column},reward", STEPS)))
    assert (series.x_label, "step_by_values" in kinds(series)) == (column, is_said)


def test_a_number_beside_losses_is_no_reward(tmp_path: Path) -> None:
    rows = [{"step": s, "lr": 1e-6, "recon_loss": 1 - r, "loss": 1 - r, "codes": [150 + s, 180]} for s, r in STEPS]
    assert "lower is better" in fault(write(tmp_path / "a.jsonl", rows))


def test_prose_in_rows_is_no_log(tmp_path: Path) -> None:
    words = ["Tom", "Ann", "Bob", "Eve"]
    rows = [
        {"question": f"{words[at % 4]} scored {at} and had a score of {at % 7} twice.", "answer": f"It is {at * 3}."}
        for at in range(60)
    ]
    assert "row per answer" in fault(write(tmp_path / "a.jsonl", rows))


def test_numbered_tasks_are_no_steps(tmp_path: Path) -> None:
    rows = [(f"task_{step:03}", reward, reward / 2) for step, reward in STEPS]
    assert "one row per Task ID" in fault(write(tmp_path / "a.csv", ("Task ID,Action Recall,Action F1", rows)))


def test_total_steps_count(tmp_path: Path) -> None:
    rows = [(reward, 20 * step, 2000 * step) for step, reward in STEPS]
    [series] = read(write(tmp_path / "a.csv", ("rollout/return,total/episodes,total/steps", rows)))
    assert series.x_label == "total/steps"
