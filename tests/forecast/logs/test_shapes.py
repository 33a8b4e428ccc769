"""Shapes of real logs that were once refused or read wrongly, with made-up numbers; none has a rule of its own."""

import json
import time
from pathlib import Path

import pytest
from log_texts import STEPS, R, cells, lines, printed
from read_logs import fault, kinds, names, planned, read, write

from scalerl.forecast.logs import Series


def points(series: Series) -> list[tuple[float, float]]:
    return list(zip(series.compute.tolist(), series.reward.tolist(), strict=True))


# A sparse column for each run


def test_one_sparse_column_per_run(tmp_path: Path) -> None:
    rows = [(0, 0.04, 0.78, 0.64, 0.11, 0.5), *((step, "", 0.78 + step / 1000, "", "", "") for step in range(1, 9))]
    rows += [(9, 0.06, 0.79, 0.66, 0.13, 0.52)]
    curves = read(write(tmp_path / "log.csv", ("Step,0.6b,14b,8b,1.7b,4b", rows)), y="0.6b,14b,8b,1.7b,4b")
    assert names(curves) == ["run=0.6b", "run=14b", "run=8b", "run=1.7b", "run=4b"]
    assert [len(series.compute) for series in curves] == [1, 9, 1, 1, 1]
    assert (points(curves[0]), curves[0].start) == ([(9, 0.06)], 0.04)


# The bar of vLLM between the word and its values

BAR = (
    "Processed prompts: 100%|####| 512/512 [00:04<00:00, 118.2it/s, est. speed input: 9000 toks/s, output: 12 toks/s]\n"
)
TALLY = (
    "histogram:  {{'correct with both format and answer reward 1': {}, 'format reward 1 and answer reward 0': {}}}\n"
)


@pytest.mark.parametrize("bar", ["", BAR])
def test_evaluations_are_told_by_the_line_before(tmp_path: Path, bar: str) -> None:
    text = ""
    for step, reward in STEPS:
        right = round(1319 * reward)
        text += f"GRPO Iteration {step}, Epoch 0, Evaluating...\n{bar}{TALLY.format(right, 1319 - right)}"
        text += "Metrics:  {'format_reward': 1.0, 'answer_reward': 1.0, 'reward': 1.0}\n"
        text += f"GRPO Iteration {step}, Epoch 0\n{bar}" + 2 * TALLY.format(20, 236)
        text += "Metrics:  {'format_reward': 1.0, 'answer_reward': 0.0, 'reward': 0.0}\n"
    [series] = read(write(tmp_path / "train.log", text))
    assert (series.y_label, len(series.compute)) == ("eval/accuracy", 40)
    assert series.reward.tolist() == pytest.approx(R, abs=1e-3)


def test_text_without_steps_is_refused(tmp_path: Path) -> None:
    assert "no line records a training step" in fault(write(tmp_path / "a.log", "reward was fine\nand rose\n" * 30))


# The step in a progress bar


def test_step_of_trl_is_that_of_the_bar(tmp_path: Path) -> None:
    text = ""
    for run in (1, 2, 3):
        for step, reward in STEPS:
            text += f"  4%|#   | {step}/40 [00:11<03:57]\n"
            text += f"{{'loss': '0.0012', 'reward': '{reward * run / 4:.4f}', 'epoch': '0.04'}}\n"
            text += f"+------ Step {step} ------+\n| Prompt | reward |\n| a: 1 | 0.50 |\n" if step % 10 == 0 else ""
    curves = read(write(tmp_path / "train.log", text))
    assert names(curves) == ["attempt 1", "attempt 2", "attempt 3"]
    assert all(series.compute.tolist() == list(range(1, 41)) for series in curves)
    assert curves[2].reward[-1] == pytest.approx(0.75 * R[-1], abs=1e-4)


def test_bar_of_a_notebook_comes_before_a_counter_of_some_prints(tmp_path: Path) -> None:
    text = ""
    for step, reward in STEPS:
        text += f" {step}% {step}/40 [01:40<1:50:05, 33.53s/it][*] sync #{step}: 28 weights pushed\n"
        text += f"[!] TAGS DETECTED (Step {step - 1})\n    tags: ['1']\n" if step % 3 else ""
        text += f"{{'loss': 0.0, 'reward': {reward}, 'epoch': 0.0}}\n"
    [series] = read(write(tmp_path / "train.log", text))
    assert points(series) == STEPS


def test_bar_with_a_named_counter_begins_a_block(tmp_path: Path) -> None:
    bar = "Epoch {step}/40: 100%|####| 9375/9375 [2:15:32<00:00, 1.15it/s]\n"
    bar += "  train/loss: 1.2\n  train/reward_mean: {reward}\n"
    [series] = read(write(tmp_path / "train.log", printed(bar)))
    assert points(series) == STEPS


def test_step_in_brackets(tmp_path: Path) -> None:
    line = "I0325 14:08:24.184369 130245504009792 writer.py:48] [{step}00] {name}"
    text = "".join(
        line.format(step=s, name=f"reward={r}, loss=0.1\n") + line.format(step=s, name="rate=2\n") for s, r in STEPS
    )
    [series] = read(write(tmp_path / "train.log", text))
    assert points(series) == [(100 * step, reward) for step, reward in STEPS]


# Blocks with boxes and bars


def test_blocks_of_nemo_rl_outlive_boxes_and_bars(tmp_path: Path) -> None:
    text = ""
    for step, reward in [(at, round(0.2 + at / 200, 4)) for at in range(1, 51)]:
        text += f"(pid=7) ========== Step {step}/50 ==========\n{BAR}"
        if step % 10 == 0:
            text += f"Starting validation at step {step}...\n+----+\n| TRAINING STEP {step} |\n+----+\n" + BAR
            text += "  \u2022 Avg Reward: 0.9\nValidation Results:\n    \u2022 Accuracy: 0.9\n"
        text += (
            f"Training Results:\n  \u2022 Loss: 0.01\n  \u2022 Avg Reward: {reward}\n  \u2022 Total step time: 36.00s\n"
        )
    plan = planned(write(tmp_path / "ray.log", text))
    assert (plan["y"], plan.roles["y"].too_few) == ("Avg Reward", {"eval/Accuracy": 5, "eval/Avg Reward": 5})
    [series] = read(tmp_path / "ray.log", x="step")
    assert (series.compute.tolist(), series.reward[-1]) == (list(range(1, 51)), 0.45)


# Flat negative rewards


def test_flat_negative_rewards_of_minimind(tmp_path: Path) -> None:
    text = "".join(f"Epoch:[1/1]({at}/9751), Reward: -1.8{at % 10}, KL_ref: 0.01\n" for at in range(1, 301))
    [series] = read(write(tmp_path / "a.log", text))
    assert (len(series.compute), series.compute[-1], series.y_scale) == (300, 300, "none")


# Which column, and a restart at an equal step


def test_rate_comes_before_a_reward_given_a_win(tmp_path: Path) -> None:
    rows = [(step, 100 * reward, 146 + step / 100) for step, reward in STEPS]
    [series] = read(write(tmp_path / "a.csv", ("step,eval_win_rate_percent,eval_avg_win_reward", rows)))
    assert (series.y_label, series.y_scale) == ("eval_win_rate_percent", "100")


# verl, old and new

VERL = "step:{step} - actor/loss:0.1 - critic/score/mean:np.float64({reward})"
SETTINGS = "VAL_BEFORE_TRAIN=1.0\n{'trainer.val_before_train': 1.0, 'test_freq': 5}\neval accuracy: 0.9\n"


@pytest.mark.parametrize("prefix", ["val/test_score/gsm8k", "test_score/gsm8k"])
def test_old_verl_has_its_start_at_step_0(tmp_path: Path, prefix: str) -> None:
    text = f"{SETTINGS}\x1b[36m(main_task pid=1)\x1b[0m step:0 - {prefix}:0.521\n" + printed(VERL)
    [series] = read(write(tmp_path / "output.log", text))
    assert (series.y_label, series.start, len(series.compute)) == ("critic/score/mean", 0.521, 40)


def test_setting_is_not_a_start(tmp_path: Path) -> None:
    [series] = read(write(tmp_path / "output.log", SETTINGS + printed(VERL)))
    assert (series.start, len(series.compute)) == (None, 40)
    [series] = read(write(tmp_path / "own.log", "VAL_BEFORE_TRAIN=1.0\n" + printed("step {step}: reward {reward}")))
    assert (series.start, series.y_label) == (None, "reward")


# Steps among events


def test_steps_among_events(tmp_path: Path) -> None:
    other = [{"event": "sample_done", "payload": {"id": at, "ok": True}} for at in range(20)]
    done = [{"event": "train_step_done", "metrics": {"optimizer_step": s, "reward": r}} for s, r in STEPS]
    [series] = read(write(tmp_path / "events.jsonl", "".join(lines([*other, row]) for row in done)))
    assert (series.x_label, series.reward.tolist()) == ("optimizer_step", R)


# A console in Markdown


def test_console_in_markdown(tmp_path: Path) -> None:
    text = f"# A run\nAt step 3 the reward = 0.9.\n```\n{printed('step={step} reward={reward}')}```\n"
    text += "By step 70 reward = 1.\n"
    [series] = read(write(tmp_path / "notes.md", text))
    assert points(series) == STEPS


def test_fence_inside_an_answer_swallows_nothing(tmp_path: Path) -> None:
    answers = "```python\nprint(1)\n", "answer ``` is\n", "\n```\n"
    text = "".join(
        f"Epoch:[1/1]({step}/40), Reward: {reward}\n{answers[step % 3] if step % 4 == 0 else ''}"
        for step, reward in STEPS
    )
    [series] = read(write(tmp_path / "train.log", text))
    assert points(series) == STEPS


# Rewards without limits


@pytest.mark.parametrize("rewards", [(-0.9, 0.2, 0.6), (0.0, 2.5, 4.0), (0.7, 5.0, 11.0), (-150.0, 3.0, 150.0)])
def test_rewards_without_limits(tmp_path: Path, rewards: tuple[float, ...]) -> None:
    [series] = read(write(tmp_path / "a.csv", ("step,reward", list(enumerate(rewards, start=1)))))
    assert (series.reward.tolist(), series.y_scale) == (list(rewards), "none")


# Answers beside their mean


def test_answers_are_not_the_curve_beside_a_mean(tmp_path: Path) -> None:
    answer = "Format score: 1\nAnswer score: {}\n"
    text = printed(f"Step {{step}}\n{answer.format(0)}{answer.format(1)}{answer.format(0)}Mean reward: {{reward}}")
    plan = planned(write(tmp_path / "a.log", text))
    assert plan["y"] == "Mean reward"
    [series] = read(tmp_path / "a.log")
    assert points(series) == STEPS
    rows = [{"step": s, "accuracy": float(n)} for s, _ in STEPS for n in (0, 1)] + [
        {"step": s, "reward": r} for s, r in STEPS
    ]
    assert planned(write(tmp_path / "a.jsonl", rows))["y"] == "reward"


# A restart at an equal step


def test_restart_at_an_equal_step_is_a_new_attempt(tmp_path: Path) -> None:
    again = [*STEPS[:20], *((step, reward + 0.1) for step, reward in STEPS[19:])]
    [series] = read(write(tmp_path / "a.csv", ("step,reward", again)))
    assert (series.compute.tolist(), series.reward[19]) == (list(range(1, 41)), R[19] + 0.1)
    assert kinds(series) == ["superseded"]
    [series] = read(write(tmp_path / "b.csv", ("step,reward", [(1, 0.9), *STEPS])))
    assert (points(series), kinds(series)) == (STEPS, ["short_attempts"])


# JSON by benchmark, run and step


def test_json_by_benchmark_run_and_step(tmp_path: Path) -> None:
    results = {"pro": {str(s): 100 * r for s, r in STEPS}, "flash": {"1": 48.7, "2": 50.1}}
    content = {"benchmarks": [{"key": key, "results": results} for key in ("a", "b")], "updated": "today"}
    curves = read(write(tmp_path / "a.json", json.dumps(content)))
    assert names(curves) == ["a/pro", "a/flash", "b/pro", "b/flash"]
    assert [len(series.compute) for series in curves] == [40, 2, 40, 2]


# Lists without steps


@pytest.mark.parametrize("num", [40, 20])
def test_lists_without_steps_are_curves(tmp_path: Path, num: int) -> None:
    log = write(tmp_path / "a.json", json.dumps({"train": R, "validation": R[:num]}))
    curves = read(log, y="train,validation" if num == 40 else None)
    assert names(curves) == ["train", "validation"]
    assert [series.compute.tolist() for series in curves] == [list(range(1, 41)), list(range(1, num + 1))]
    assert "rows_counted" in kinds(curves[0])


# Checkpoints of one run


def test_checkpoints_of_one_run_are_one_curve(tmp_path: Path) -> None:
    paths = []
    for num in (10, 20, 30, 40):
        history = [{"step": step, "reward": reward, "epoch": step / 40} for step, reward in STEPS[:num]]
        state = json.dumps({"global_step": num, "best_metric": None, "log_history": history})
        paths.append(write(tmp_path / f"out/checkpoint-{num}/trainer_state.json", state))
    for given in (paths, [tmp_path / "out"], paths[::-1]):
        [series] = read(*given)
        assert points(series) == STEPS
    assert kinds(read(*paths)[0]) == ["contained"]


# Limits


@pytest.mark.parametrize(
    "name, text, said",
    [
        ("a.csv", ",".join(f"c{at}" for at in range(100_000)) + "\n" + "1," * 99_999 + "1", "more than 5,000 columns"),
        ("a.tsv", "\t".join(f"c{at}" for at in range(100_000)) + "\n", "more than 5,000 columns"),
        ("a.jsonl", lines([{f"c{at}": 1 for at in range(100_000)}] * 2), "more than 5,000 columns"),
        ("a.log", "step:1 - a:" + "9" * 50_000 + "/\n", "no line records a training step"),
        ("b.log", "9" * 50_000 + "\n", "no line records a training step"),
        ("c.log", "step 1 reward " + "1,2" * 20_000 + "%\n", "no line records a training step"),
        ("d.log", "a" * 50_000 + ": 1\n" + "step=" * 10_000, "no line records a training step"),
    ],
    ids=["csv", "tsv", "jsonl", "verl", "digits", "groups", "words"],
)  # fmt: skip
def test_too_much_is_refused_soon(tmp_path: Path, name: str, text: str, said: str) -> None:
    began = time.process_time()
    assert said in fault(write(tmp_path / name, text))
    assert time.process_time() - began < 1


def test_cells_of_arms_at_one_step_are_curves(tmp_path: Path) -> None:
    rows = [
        (b, m, s, 100 * r / k) for b in ("x", "y") for k, m in enumerate(("pro", "flash"), start=1) for s, r in STEPS
    ]
    curves = read(write(tmp_path / "a.csv", cells("benchmark,model,step,score", rows)))
    assert names(curves) == ["pro/x", "flash/x", "pro/y", "flash/y"]
    assert [(series.evaluation_set, series.y_scale) for series in curves[:3]] == [
        ("x", "100"),
        ("x", "100"),
        ("y", "100"),
    ]


# Console output of more frameworks, as they print it

VERL_ITEMS = "step:{step} - actor/lr:1e-06 - critic/score/mean:{reward} - perf/throughput:9.5 - timing_s/step:36.0"
DICT = "{{'loss': '0.1', 'learning_rate': '2e-06', 'reward': '{reward}', 'epoch': '0.5'}}"
RLLIB = """Result for PPO_env_0:
  agent_timesteps_total: {step}000
  date: 2026-01-01_10-00-00
  episode_reward_mean: {reward}
  info:
    learner_stats:
      kl: 0.01
  training_iteration: {step}
"""
RSL = """################
     Learning iteration {step}/300
          Total steps: {step}512
      Collection time: 0.102s
          Mean reward: {reward}
----------------
       Iteration time: 36.00s
"""
DEEPSPEED = """epoch: 0|step: {step}|ppo_ep: 1|act_loss: 0.02|cri_loss: 0.2
average reward score: {reward}
----------------
|E2E latency=2.12s |Gather latency=0.00s (0.00%) |Training time=0.42s (19.78%)
"""
NEW_DEEPSPEED = """Epoch: 0 | Step: {step} | PPO Epoch: 1 | Actor Loss: 0.02
End-to-End => Latency: 9.1s, TFLOPs: 2.0
Generation => Latency: 7.2s, TFLOPs: 0.9
Average reward score: {reward} | EMA reward score: {half}
"""
SKYRL = """2026-01-01 10:00:00.1 | INFO | trainer:advantages:520 - avg_raw_rewards: {reward}, avg_response_length: 51.5
2026-01-01 10:00:00.2 | INFO | trainer:train:300 - {{'policy_loss': 0.01, 'raw_grad_norm': 0.1}}
Training Batches Processed:  2%|#  | {step}/40 [00:41<20:12, 41.2s/it]
"""
COMPLETIONS = "\u2502 What is 2+2? \u2502 step 3: reward: 9 \u2502 1.00 \u2502\n"
REWARDED = "    REWARD  : +3.40  |  findings so far: 0\n"


# name -> what a loop prints, reward, axis
LOOPS = {
    "verl, an item a line": (VERL_ITEMS.replace(" - ", "\n - "), "critic/score/mean", "hours"),
    "verl, wrapped": (VERL_ITEMS.replace("- critic", "- cri\ntic"), "critic/score/mean", "hours"),
    "dict over lines": (DICT.replace(" 'reward'", "\n 'reward'"), "reward", "step"),
    "wrapped dict": ("4%|# | {step}/40 [06:36<2:18:52, 21.8s/it]" + DICT.replace(": '{", ":\n '{"), "reward", "step"),
    "blocks of RLlib": (RLLIB, "episode_reward_mean", "step"),
    "blocks of rsl_rl": (RSL, "Mean reward", "hours"),
    "DeepSpeed-Chat": (DEEPSPEED, "average reward score", "step"),
    "newer DeepSpeed-Chat": (NEW_DEEPSPEED, "Average reward score", "step"),
    "logfmt": ('ts=10:00:01 msg="eval" step={step} dataset=gsm8k accuracy={reward} n=1319', "accuracy", "step"),
    "Megatron": (" iteration      {step}/    2174 | consumed samples:  448 | reward: {reward} |", "reward", "step"),
    "prompts in a box": (f"{COMPLETIONS}step {{step}}: loss=0.1 reward={{reward}}", "reward", "step"),
    "answers between": (f"STEP 0 | enumerate\n{REWARDED}STEP 1 | stop\n{REWARDED}Epoch {{step}} | reward= {{reward}}",
                        "reward", "epoch"),
    "Python's logging": ("2026-01-02 10:00:30,123 - INFO - step: {step}/600 (1.7%) | reward: {reward} \u00b1 0.02",
                         "reward", "step"),
    "bar drawn again": ("".join(f"train gather step {{step}}:  94%|##| {at}/3 [00:01<00:01, reward={{reward}}]\n"
                                for at in (1, 2, 3)), "reward", "step"),
    "no counter": ("Time 08h 36m 42s, Avg Reward {reward}, Avg Ep length 5.26", "Avg Reward", "step"),
    "value function": ("{{'eps': 1, 'objective/scores': {reward}, 'val/ratio': 1.0, 'val/clipfrac_avg': 0.0}}",
                       "objective/scores", "step"),
    "format apart": ("training_step: {step}, val/format_scores: 0.0, val/stop_rate: 1.0, scores: {reward}",
                     "scores", "step"),
    "camel case": ("globalStep={step} meanReward={reward} MaxRew=0.9", "meanReward", "step"),
    "no column of steps": ("{{'agent/loss': 0.1, 'EpisodeScore': {reward}}}", "EpisodeScore", "step"),
}  # fmt: skip


HER = "ddpg_params: {'pi_lr': 0.001, 'max_u': 1.0, 'gamma': 0.98}\nn_cycles: 50\n" * 4
HER_BOX = """---------------------------------
| epoch              | {step}          |
| stats_o/mean       | 0.259      |
| test/success_rate  | {reward}   |
---------------------------------
"""
ALIGNED = """[trpo] epoch #{step} | Saving snapshot...
-----------------------  ------------
Evaluation/AverageReturn    {reward}
Evaluation/NumTrajs         10
-----------------------  ------------
"""


@pytest.mark.parametrize(
    ("above", "loop", "y", "x"),
    [
        (HER, HER_BOX, "test/success_rate", "epoch"),
        ("", ALIGNED, "Evaluation/AverageReturn", "epoch"),
        ("", "After {step} episodes the mean reward was {reward} (std 3.2).", "the mean reward", "episodes"),
        ("", "step {step} loss: nan reward: {reward}", "reward", "step"),
        ("", "global_step={step}, episodic_return=[{reward}]", "episodic_return", "step"),
    ],
    ids=["boxes under settings", "aligned values", "prose", "not a number", "array"],
)
def test_more_loops_are_read(tmp_path: Path, above: str, loop: str, y: str, x: str) -> None:
    [series] = read(write(tmp_path / "train.log", above + printed(loop)))
    assert (series.y_label, series.x_label, points(series)) == (y, x, STEPS)


def test_last_line_without_its_end_is_kept_where_no_digit_matters(tmp_path: Path) -> None:
    long = [(step, reward + 1e-9) for step, reward in STEPS]
    text = "\n".join(f"Episode: {step}, loss: 0.1, reward: {reward:.10f}" for step, reward in long)
    [series] = read(write(tmp_path / "train.log", text))
    assert points(series) == [(step, pytest.approx(reward)) for step, reward in long]


def test_title_before_a_table_in_a_notebook_is_no_part_of_its_header(tmp_path: Path) -> None:
    head = "".join(f"<th>{name}</th>" for name in ("Step", "Training Loss", "reward"))
    rows = "".join(f"<tr><td>{step}</td><td>0.1</td><td>{reward}</td></tr>" for step, reward in STEPS)
    html = f"<div>[40/40 53:42, Epoch 2/3]</div><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    cell = {"outputs": [{"output_type": "display_data", "data": {"text/html": [html]}}]}
    [series] = read(write(tmp_path / "a.ipynb", json.dumps({"cells": [cell], "nbformat": 4})))
    assert (series.x_label, points(series)) == ("Step", STEPS)


@pytest.mark.parametrize("name", LOOPS)
def test_loop_is_read(tmp_path: Path, name: str) -> None:
    template, y, x = LOOPS[name]
    [series] = read(write(tmp_path / "train.log", printed(template)))
    assert (series.y_label, series.x_label, series.reward.tolist()) == (y, x, pytest.approx(R))
    unit = 0.01 if x == "hours" else 1
    assert series.compute == pytest.approx([unit * step for step, _ in STEPS])


def test_several_dicts_in_a_line(tmp_path: Path) -> None:
    text = " ".join(f"{{'loss': 0.1, 'reward': {reward}, 'info': {{'kl': 0.1}}}}" for reward in R)
    assert read(write(tmp_path / "a.log", text))[0].reward.tolist() == R


def test_reward_beside_a_bar_that_comes_later(tmp_path: Path) -> None:
    [series] = read(write(tmp_path / "a.log", printed(SKYRL)))
    assert (series.y_label, series.start, points(series)) == ("avg_raw_rewards", None, STEPS)


def test_section_of_a_box_is_part_of_the_name(tmp_path: Path) -> None:
    box = "--------\n| {0}/ |      |\n|    {1} | {2} |\n| time/ |      |\n|    total_timesteps | {3} |\n--------\n"
    text = "".join(
        box.format("rollout", "ep_rew_mean", reward / 2, 100 * step)
        + (box.format("eval", "mean_reward", reward, 100 * step + 50) if step % 4 == 0 else "")
        for step, reward in STEPS
    )
    [series] = read(write(tmp_path / "a.log", text))
    assert (series.y_label, points(series)) == ("eval/mean_reward", [(100 * s + 50, r) for s, r in STEPS[3::4]])


def test_line_with_nothing_but_the_prefix_of_ray(tmp_path: Path) -> None:
    text = "".join(f"{{'loss': 0.1,\n(Worker pid=7) \n'step': {at}, 'reward': {reward}}}\n" for at, reward in STEPS)
    [series] = read(write(tmp_path / "train.log", text))
    assert points(series) == STEPS


def test_dict_that_is_never_closed_swallows_nothing(tmp_path: Path) -> None:
    text = "The answer is {'a': 1, and so on\n" + printed("step={step} reward={reward}")
    assert points(read(write(tmp_path / "a.log", text))[0]) == STEPS


@pytest.mark.parametrize(
    "text",
    ["INFO args: {'dtype': 'float16', 'max_model_len': 4096, 'gpu_memory_utilization': 0.3}\n",
     printed("fps step: 52341 fps total: 32111 epoch: {step}/500 frames: {step}768"),
     printed("| {step} | yes | {reward} | no |")],
    ids=["settings", "speed", "table"],
)  # fmt: skip
def test_numbers_by_accident_are_no_reward(tmp_path: Path, text: str) -> None:
    fault(write(tmp_path / "a.log", text))


def _mixed(line: str, names: tuple[str, ...] = ("grpo", "dapo")) -> str:
    return "".join(line.format(name=n, step=s, reward=r / (1 + k)) for s, r in STEPS for k, n in enumerate(names))


@pytest.mark.parametrize(
    "line",
    ["[{name}] step {step}: reward={reward} loss=0.1\n", "{name}: {{'step': {step}, 'reward': {reward}}}\n",
     "2026-01-01 10:00:00 INFO {name} step={step} reward={reward}\n",
     "({name} pid=7) step:{step} - actor/loss:0.1 - critic/score/mean:{reward}\n"],
    ids=["brackets", "dicts", "logging", "processes"],
)  # fmt: skip
def test_runs_mixed_in_one_console_are_curves(tmp_path: Path, line: str) -> None:
    curves = read(write(tmp_path / "a.log", _mixed(line)))
    assert [series.name.split()[0] for series in curves] == ["grpo", "dapo"]
    assert points(curves[0]) == STEPS
    ahead = _mixed(line, ("grpo",)).splitlines()
    behind = _mixed(line, ("dapo",)).splitlines()
    text = "\n".join([*ahead[:15], *(both for pair in zip(ahead[15:], behind, strict=False) for both in pair)])
    assert points(read(write(tmp_path / "b.log", text + "\n"))[0]) == STEPS


def test_runs_mixed_without_a_name_are_told(tmp_path: Path) -> None:
    [series] = read(write(tmp_path / "a.log", _mixed("Iter {step}/40 | reward {reward}\n")))
    assert (len(series.compute), series.compute[-1], kinds(series)[-1]) == (80, 40, "steps_come_back")


def test_processes_of_a_run_are_no_runs(tmp_path: Path) -> None:
    [series] = read(write(tmp_path / "a.log", _mixed("[{name}]: step {step} reward {reward}\n", ("rank0", "rank1"))))
    assert len(series.compute) == 80


AT = "  3%|# | {} [00:01<00:40, 1.2s/it]"
BARS = {
    "drawn after the record": (DICT + "\n" + AT.format("{step}/250"), "reward"),
    "drawn before the record": (AT.format("{before}/250") + "\n" + DICT, "reward"),
    "OpenRLHF": ("Episode [1/20]:   3%|# | {before}/250 [05:12<3:00, 44.5s/it]\n"
                 + "".join(f"Train epoch [1/1]:  50%|# | {at}/2 [00:11<00:10, 10s/it, pg=0.1, rm={{reward}}, ret=0.1]\n"
                           for at in (1, 2)), "rm"),
    "a bar alone": ("Episode [1/20]:  3%|# | {step}/250 [00:01<00:40, 1.2s/it, loss=0.1, reward={reward}]", "reward"),
    "bars that are full": ("gather: 100%|####| 64/64 [00:36<00:00, 1.7it/s, reward={reward}, tokens=211]\n"
                           "train: 100%|####| 8/8 [00:20<00:00, 2.5s/it, loss=0.1]", "reward"),
}  # fmt: skip


@pytest.mark.parametrize("name", BARS)
def test_step_of_a_bar(tmp_path: Path, name: str) -> None:
    template, y = BARS[name]
    [series] = read(write(tmp_path / "a.log", printed(template)))
    assert (series.y_label, points(series), series.start) == (y, STEPS, None)


@pytest.mark.parametrize("width", [60, 80, 97, 120])
def test_verl_hard_wrapped_by_a_terminal(tmp_path: Path, width: int) -> None:
    items = " - ".join(f"perf/metric_{at}:1.{at}" for at in range(9))
    bar = "(TaskRunner pid=7) Training Progress:  3%|# | {step}/250 [00:01<00:40]\n"
    whole = printed(f"{bar}(TaskRunner pid=7) step:{{step}} - {items} - critic/score/mean:{{reward}} - {items}")
    parts = [line[at : at + width] for line in whole.splitlines() for at in range(0, len(line), width)]
    [series] = read(write(tmp_path / "a.log", "\n".join(parts)))
    assert (series.y_label, points(series)) == ("critic/score/mean", STEPS)


def test_parts_of_a_step_give_way_to_its_mean(tmp_path: Path) -> None:
    part = "Step {step}/40 | Example index 0 | Pass 0 | loss: 0.1 | Average reward: {half}\n"
    [series] = read(write(tmp_path / "a.log", printed(f"{part}{part}Step {{step}}/40 | Average reward: {{reward}}")))
    assert points(series) == STEPS


def test_pairs_in_the_rows_of_a_box(tmp_path: Path) -> None:
    box = "Step {step}/40 done.\n\u2502 entropy/avg \u2502 3.1e-01 \u2502 task_reward/avg \u2502 {reward} \u2502"
    [series] = read(write(tmp_path / "a.log", printed(box)))
    assert (series.y_label, points(series)) == ("task_reward/avg", STEPS)


def test_folder_of_a_step_names_it(tmp_path: Path) -> None:
    text = printed("Loading checkpoint global_step_{step}0\n[global_step_{step}0] aime24 accuracy: {reward}")
    [series] = read(write(tmp_path / "a.log", text))
    assert (series.compute[-1], series.reward.tolist()) == (400, R)


CONTAINERS = {
    "docker": lines([{"log": f"step {s}: reward={r}\n", "stream": "stdout", "time": "2026"} for s, r in STEPS]),
    "kubernetes": lines([{"kubernetes": {"pod": "a"}, "message": f"{{'step': {s}, 'reward': {r}}}"} for s, r in STEPS]),
    "a cloud": json.dumps([{"textPayload": f"step={s} | reward={r}", "severity": "INFO"} for s, r in STEPS]),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_lines_inside_the_log_of_a_container(tmp_path: Path, name: str) -> None:
    [series] = read(write(tmp_path / "a.json", CONTAINERS[name]))
    assert (series.y_label, points(series)) == ("reward", STEPS)


# Tables and JSON of more frameworks


def test_messages_beside_numbers_are_no_lines(tmp_path: Path) -> None:
    rows = [{"message": f"step {s} has reward 9", "step": s, "metrics": {"reward": r}} for s, r in STEPS]
    assert points(read(write(tmp_path / "a.jsonl", rows))[0]) == STEPS


def test_metrics_by_name_as_comet_has_them(tmp_path: Path) -> None:
    metrics = [{"metricName": name, "values": R, "steps": [s for s, _ in STEPS]} for name in ("loss", "reward")]
    for num in (1, 2):
        [series] = read(write(tmp_path / "a.json", json.dumps([{"experimentKey": "ab12", "metrics": metrics[-num:]}])))
        assert (series.y_label, points(series)) == ("reward", STEPS)


def test_tally_is_no_map_of_steps(tmp_path: Path) -> None:
    fault(write(tmp_path / "a.json", json.dumps({"160": {"38": 60, "39": 27, "24": 8, "29": 22}})))


def test_units_in_brackets_scale(tmp_path: Path) -> None:
    rows = [(step / 10, step / 2, 100 * reward) for step, reward in STEPS]
    [series] = read(write(tmp_path / "a.csv", ("tokens (B),Steps (k),accuracy (%)", rows)))
    assert (series.x_label, series.compute[-1], series.axes["step"][-1]) == ("tokens", 4e9, 20_000)
    assert (kinds(series), series.y_scale) == (["units", "percent"], "100")
    [series] = read(tmp_path / "a.csv", x="tokens (B)")
    assert series.compute[-1] == 4


def test_monitor_of_stable_baselines(tmp_path: Path) -> None:
    text = '#{"t_start": 1700000000.0}\n' + cells("r,l,t", [(100 * r, 20, 1.5 * s) for s, r in STEPS])
    [series] = read(write(tmp_path / "0.monitor.csv", text))
    assert (series.y_label, points(series)) == ("r", [(s, 100 * r) for s, r in STEPS])


def test_table_under_a_longer_log_is_its_summary(tmp_path: Path) -> None:
    table = "| step | accuracy |\n|---|---|\n" + "".join(f"| {5 * at} | 0.9{at} |\n" for at in range(1, 9))
    assert points(read(write(tmp_path / "a.log", printed("step {step}: reward={reward}") + table))[0]) == STEPS


def test_aligned_table_between_other_lines(tmp_path: Path) -> None:
    text = "Device: cuda\n  Iter   Reward   Loss\n----------------\n" + printed("{step}    {reward}    0.1") + "Done.\n"
    assert points(read(write(tmp_path / "a.log", text))[0]) == STEPS


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_rows_without_any_counter_are_counted(tmp_path: Path, name: str) -> None:
    rows = [{"loss": 0.1, "reward": reward} for reward in R]
    content = rows if name == "a.jsonl" else ("loss,reward", [(0.1, reward) for reward in R])
    [series] = read(write(tmp_path / name, content))
    assert (points(series), kinds(series)) == (STEPS, ["rows_counted"])


def test_constant_gives_way_to_what_moves(tmp_path: Path) -> None:
    rows = [(step, 0.9, 0.0, reward) for step, reward in STEPS]
    assert planned(write(tmp_path / "a.csv", ("step,eval/bert_score,accuracy,reward", rows)))["y"] == "reward"
    assert planned(write(tmp_path / "b.csv", ("step,reward", [row[:2] for row in rows])))["y"] == "reward"


def test_average_of_evaluations_comes_before_its_parts(tmp_path: Path) -> None:
    rows = [(step, reward / 2, reward, reward) for step, reward in STEPS]
    assert planned(write(tmp_path / "a.csv", ("step,eval/aime,eval/avg,reward", rows)))["y"] == "eval/avg"
    rows = [(step, 100 * reward, reward) for step, reward in STEPS]
    assert planned(write(tmp_path / "b.csv", ("step,pass_rate_pct,reward", rows)))["y"] == "pass_rate_pct"


def test_episodes_that_begin_anew_are_attempts(tmp_path: Path) -> None:
    rows = [{"episode": step, "total_reward": reward * run} for run in (1, 2, 3) for step, reward in STEPS]
    assert names(read(write(tmp_path / "a.jsonl", rows))) == ["attempt 1", "attempt 2", "attempt 3"]


def test_speed_is_no_amount_of_compute(tmp_path: Path) -> None:
    rows = [(step, 312 + step % 3, reward) for step, reward in STEPS]
    [series] = read(write(tmp_path / "a.csv", ("step,training_flops,reward", rows)))
    assert series.x_label == "step"


def test_files_of_training_and_evaluation_are_one_run(tmp_path: Path) -> None:
    write(tmp_path / "train_metrics.jsonl", [{"step": step, "reward": reward / 2} for step, reward in STEPS])
    write(tmp_path / "eval_metrics.jsonl", [{"step": step, "accuracy": reward} for step, reward in STEPS[3::4]])
    [series] = read(tmp_path)
    assert (series.y_label, len(series.compute), kinds(series)) == ("accuracy", 10, ["other_logs"])


def test_names_with_numbers_are_no_steps(tmp_path: Path) -> None:
    results = {run: {"aime24": 0.1, "math500": 0.7} for run in ("base", "grpo", "dapo")}
    assert "holds no list of rows" in fault(write(tmp_path / "a.json", json.dumps(results, indent=1)))


def test_only_dicts_are_records_among_answers(tmp_path: Path) -> None:
    answer = "Step 1: x = 3 + {step}\nSo the accuracy score 0.5 is\nThe reward: 9 of step {step}\n"
    [series] = read(write(tmp_path / "a.log", printed(answer + DICT)))
    assert (series.y_label, points(series)) == ("reward", STEPS)


def test_evaluations_behind_a_prefix(tmp_path: Path) -> None:
    prefix = "2026-01-02 10:00:30,123 - INFO - "
    text = printed(prefix + "step: {step}/40 (1.7%) | reward: {half}", prefix + "eval @ step {step}: gsm8k={reward}")
    [series] = read(write(tmp_path / "a.log", text))
    assert (series.y_label, points(series)) == ("eval/gsm8k", STEPS[3::4])


def test_time_that_does_not_grow_is_the_time_since_the_row_before(tmp_path: Path) -> None:
    text = "".join(f"steps: {2500 * step}, mean reward: {reward}, time: {36 + step % 3}.0\n" for step, reward in STEPS)
    [series] = read(write(tmp_path / "train.log", text))
    spent = sum(36 + step % 3 for step, _ in STEPS) / 3600
    assert (series.x_label, series.compute[-1]) == ("hours", pytest.approx(spent))


def test_dicts_in_answers_are_no_records(tmp_path: Path) -> None:
    text = ""
    for step, reward in STEPS:
        text += f" {step}%|#| {step}/40 [00:01<00:40]\n{{'loss': 0.1, 'reward': {reward}, 'epoch': 0.1}}\n"
        text += "d = {'a': 1,\n     'reward': 9}\nprint(d)\n" if step in (5, 25) else ""
    [series] = read(write(tmp_path / "train.log", text))
    assert series.reward.tolist() == R


# Evaluations on lines of their own


def test_loose_evaluations_below_the_line_of_their_step(tmp_path: Path) -> None:
    text = printed("Epoch 1 | Step {step} | Loss 0.1 | Reward {half}", "Validation accuracy: {reward}")
    [series] = read(write(tmp_path / "train.log", text))
    assert (series.y_label, points(series)) == ("Validation accuracy", STEPS[3::4])


def test_whole_numbers_without_a_telling_name_are_no_reward(tmp_path: Path) -> None:
    rows = [(step, round(100 * reward), 100) for step, reward in STEPS]
    assert "no column recognised as reward" in fault(write(tmp_path / "log.csv", ("step,solved,total", rows)))
