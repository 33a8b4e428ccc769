"""Logs in the shapes that trainers, trackers and people write: each is read without an option as what it is."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from log_texts import rising
from shared_data import FOLDER, needs_shared_data

from scalerl.errors import InputError
from scalerl.logs.formats import read_tables
from scalerl.logs.series import Selection, Series, series_from

R = rising(40)
STEPS = list(enumerate(R, start=1))
EVERY_4 = STEPS[3::4]


def lines(rows: Sequence[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def cells(header: str, rows: Sequence[Sequence[Any]], delimiter: str = ",") -> str:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerows([header.split(","), *rows])
    return text.getvalue()


def printed(template: str, evaluation: str = "", steps: Sequence[tuple[int, float]] = STEPS) -> str:
    """Print every step, with half of the reward as {half}, and every fourth step an evaluation after it."""
    text = ""
    for step, reward in steps:
        given = {"step": step, "before": step - 1, "reward": reward, "half": reward / 2, "percent": 100 * reward}
        text += template.format(**given) + "\n"
        text += evaluation.format(**given) + "\n" if evaluation and step % 4 == 0 else ""
    return text


def arms(column: str) -> str:
    return cells(f"{column},step,reward", [(arm, s, x * r) for arm, x in (("a", 1), ("b", 0.9)) for s, r in STEPS])


def stable_baselines() -> str:
    row = "| {:18} | {!s:11} |\n"
    return "Using cpu device\n" + "".join(
        "-" * 38 + "\n" + row.format("rollout/", "") + row.format("   ep_rew_mean", round(200 * reward, 1))
        + row.format("time/", "") + row.format("   iterations", step) + row.format("   total_timesteps", 2048 * step)
        for step, reward in STEPS
    )  # fmt: skip


def trl_with_tables(num: int = 3) -> str:
    box = "╭──────── Step {step} ────────╮\n│ Prompt │ reward │\n│ a: 1 │ b │ 0.50 │\n╰─────────╯"
    bar = "\r {step}%|▍   | {step}/40 [00:11<03:57,  1.2s/it]\n"
    return "".join(
        printed(bar + "{{'loss': '0.0012', 'reward': '{reward:.4f}', 'epoch': '0.04'}}", box,
                [(step, run * reward) for step, reward in STEPS])
        for run in range(1, num + 1)
    )  # fmt: skip


NEMO = "(pid=7) ========== Step {step}/40 ==========\n▶ Generating responses...\n"
NEMO_TRAINING = "📊 Training Results:\n  • Loss: 0.01\n  • Avg Reward: {half}\n⏱️  Timing:\n  • Total step time: 36.00s"
HISTOGRAM = "histogram:  {{'correct with both format and answer': {right}, 'format reward 1': {wrong}}}\n"


def nemo_rl_with_boxes() -> str:
    box = "▶ Starting validation at step {step}...\n╭────────────╮\n│ TRAINING STEP {step} │\n╰────────────╯\n"
    box += "  • Avg Reward: 0.9\n📊 Validation Results:\n    • Accuracy: 0.9\n"
    training = NEMO_TRAINING.replace("{half}", "{reward}")
    return "".join(
        printed(NEMO + (box if step % 10 == 0 else "") + training, "", [(step, reward)]) for step, reward in STEPS
    )


def evaluations_by_the_line_before() -> str:
    text = "Loading model, batch 4\n"
    for step, reward in STEPS:
        text += f"GRPO Iteration {step}, Epoch 0, Evaluating...\n"
        text += HISTOGRAM.format(right=round(10_000 * reward), wrong=10_000 - round(10_000 * reward))
        text += f"Metrics:  {{'format_reward': 1.0, 'reward': 1.0}}\nGRPO Iteration {step}, Epoch 0\n"
        text += 3 * HISTOGRAM.format(right=20, wrong=236) + "Metrics:  {'format_reward': 1.0, 'reward': 0.0}\n"
    return text


def old_verl(
    line: str = "(main_task pid=1) step:{step} - actor/loss:0.1 - critic/score/mean:np.float64({reward})",
) -> str:
    return "\x1b[36m(main_task pid=1)\x1b[0m step:0 - val/test_score/gsm8k:0.121\n" + printed(line)


def events() -> str:
    started = [{"event": "rollout_started", "id": n, "payload": {"prompt": "a"}} for n in range(10)]
    done = [{"event": "train_step_done", "metrics": {"optimizer_step": step, "reward": r}} for step, r in STEPS]
    return "".join(lines([*started, row]) for row in done)


def drawn(separator: str) -> str:
    rows = [("", "Step", "Training Loss", "reward", ""), *(("", str(at), "0.1", str(r), "") for at, r in STEPS)]
    table = [separator.join(row) for row in rows]
    rule = ["|---|---|---|"] if separator == "|" else []
    return "\n".join(["Some words  here.", "", table[0], *rule, *table[1:], "", "The end."])


def trl_history() -> str:
    rows = [{"step": s, "loss": 0.1, "reward": 2 * r, "reward_std": 0.2} for s, r in STEPS]
    rows += [{"step": s, "eval_reward": r, "eval_loss": 0.1} for s, r in EVERY_4]
    return json.dumps({"global_step": 40, "log_history": sorted(rows, key=lambda row: row["step"])}, indent=2)


def wandb_history() -> str:
    rows = [(2 * s, 60 * s, s, r / 2, "") for s, r in STEPS] + [
        (2 * s + 1, 60 * s + 5, s, "NaN", r) for s, r in EVERY_4
    ]
    return cells("_step,_runtime,train/global_step,train/reward,eval/accuracy", sorted(rows))


class Log(NamedTuple):
    name: str
    text: str
    y: str
    points: tuple[int, ...] = (40,)
    """Of each curve; ten are the evaluations of every fourth step."""
    unit: float = 1.0
    start: float | None = None
    facts: str = ""


EVALS = (10,)
LOGS = (
    # trainers
    Log("trl/trainer_state.json", trl_history(), "eval_reward", EVALS),
    Log("trl_quoted.log", printed("{{'loss': '0.0', 'reward': '{reward}', 'epoch': '0.{step:02}'}}"), "reward"),
    Log("trl_tables.log", trl_with_tables(), "reward", (40, 40, 40), facts="attempts"),
    Log(
        "trl_evals.log",
        printed("\r {step}%|██ | {step}/40 [00:11<03:00]\r   \r{{'num_tokens': {step}, 'reward': {half}}}",
                "{{'eval_loss': 0.01, 'eval_reward': {reward}, 'eval_runtime': 12.3, 'epoch': 0.1}}"),
        "eval_reward", EVALS,
    ),
    Log("verl.log", old_verl(), "critic/score/mean", start=0.121, facts="start_from_evaluation"),
    Log(
        "verl_new.log",
        "(TaskRunner pid=1) step:0 - val-core/gsm8k/acc/mean@1:0.301\n"
        + printed("\x1b[36m(TaskRunner pid=1)\x1b[0m step:{step} - critic/score/mean:{half} - timing_s/step:36.0",
                  "(TaskRunner pid=1) step:{step} - val-core/gsm8k/acc/mean@1:np.float64({reward})\n"
                  "(TaskRunner pid=1) Step 1: add 3 and 4, total = 7"),
        "val-core/gsm8k/acc/mean@1", EVALS, start=0.301,
    ),
    Log("verl.jsonl", lines([{"step": s, "data": {"critic/rewards/mean": r}} for s, r in STEPS]),
        "critic/rewards/mean"),
    Log(
        "nemo.log",
        "".join(printed(NEMO, "▶ Starting validation at step {step}...\n📊 Validation Results:\n  • Accuracy: {reward}",
                        [step]) + printed(NEMO_TRAINING, "", [step]) for step in STEPS),
        "eval/Accuracy", EVALS,
    ),
    Log("nemo_boxes.log", nemo_rl_with_boxes(), "Avg Reward"),
    Log("sb3.log", stable_baselines(), "rollout/ep_rew_mean", unit=200),
    Log("sb3/progress.csv", cells("rollout/ep_rew_mean,time/total_timesteps", [(200 * r, 2048 * s) for s, r in STEPS]),
        "rollout/ep_rew_mean", unit=200),
    Log(
        "prime.log",
        printed("10:00:01    INFO Step {step} | Time: 36.00s | Reward: {half} | Throughput: 3500.7 tokens/s",
                "10:00:02 SUCCESS Evaluated math500 in 3.2s (Avg@4={reward}, Pass@4: 0.9512, Truncated: 3.0%)"),
        "eval/math500/avg@4", EVALS,
    ),
    Log(
        "slime.log",
        printed("(RolloutManager pid=7) rollout.py:88 - rollout {step}: {{'rollout/raw_reward': {half}}}\n"
                "(TrainActor pid=8) model.py:9 - step {step}{step}: {{'train/loss': 0.1}}",
                "(RolloutManager pid=7) rollout.py:90 - eval {step}: {{'eval/aime': {reward}}}"),
        "eval/aime", EVALS,
    ),
    Log(
        "skyrl.log",
        printed("(skyrl_entrypoint pid=5) 2026-01-01 10:00:00.000 | INFO     | trainer:log:9 - Step {step}: "
                "{{'reward/avg_raw_reward': {half}, 'policy/loss': 0.1, 'eval/all/avg_score': {reward}}}"),
        "eval/all/avg_score",
    ),
    Log(
        "skyrl_training.log",
        printed("(e pid=9) {{'reward/avg_pass_at_8': 0.9, 'reward/avg_raw_reward': {reward}, 'global_step': {step}}}"),
        "reward/avg_raw_reward",
    ),
    Log("openrlhf.log", printed("(P pid=3) INFO Global step {step}: {{'loss': 0.1, 'reward': {reward}}}"), "reward"),
    Log(
        "areal.log",
        printed("StatsLogger INFO: Epoch 1/3 Step {step}/100 Train step {step} done.\nStats:\n╭─────┬─────╮\n"
                "│ grpo_actor/task_reward/avg │ {reward:.4e} │\n│ grpo_actor/kl │ 1.0e-03 │\n╰─────┴─────╯"),
        "grpo_actor/task_reward/avg",
    ),
    Log("minimind.log", printed("Epoch:[1/1]({step}/9751), Reward: -{reward}, KL_ref: 0.01"), "Reward", unit=-1,
        facts="own_scale"),
    Log(
        "swift/logging.jsonl",
        lines([{"reward": r, "global_step/max_steps": f"{s}/400", "elapsed_time": "3m 20s"} for s, r in STEPS]),
        "reward",
    ),
    Log(
        "llama_factory/trainer_log.jsonl",
        lines([{"current_steps": s, "total_steps": 40, "reward": r, "elapsed_time": "0:00:10"} for s, r in STEPS]),
        "reward",
    ),
    Log(
        "rllib/result.json",
        lines([{"training_iteration": s, "env_runners": {"episode_return_mean": 200 * r}} for s, r in STEPS]),
        "env_runners/episode_return_mean", unit=200,
    ),
    Log(
        "tqdm.log",
        "".join(f"\rreward: {r} | kl: 0.01: 4%|██| {s}/40 [00:02<01:00, 1.5s/it]" for s, r in STEPS), "reward",
    ),
    # lines that people print
    Log("free.log", evaluations_by_the_line_before(), "eval/accuracy"),
    Log("prints.log", printed("Step {step}: loss = 0.12, mean reward = {reward}"), "mean reward"),
    Log("spaces.log", printed("iter {step} loss 0.12 reward {reward}"), "reward"),
    Log("episodes.log", printed("Episode {step}/40 | Reward: {reward} | Epsilon: 0.1"), "Reward"),
    Log("within.log",
        "".join(f"Epoch {(s - 1) // 10}, step {(s - 1) % 10 + 1}/10: reward = {r}\n" for s, r in STEPS), "reward"),
    Log("thousands.log", printed("Step {step},000 | reward: {reward}"), "reward"),
    Log("epochs.log", printed("Epoch {step} - loss: 0.12 - val_acc: {percent:.2f}%"), "val_acc"),
    Log("json.log", printed('INFO:trainer:{{"step": {step}, "metrics": {{"reward": {reward}}}}}'), "metrics/reward"),
    Log("evaluating.log", printed("step {step} reward={half}", "Evaluation at step {step}: accuracy={reward}"),
        "eval/accuracy", EVALS),
    Log("iter.log", printed("[Iter {step:03d}] loss 0.1 | mean_reward {half:.3f}",
                            "[Iter {step:03d}] Evaluation: accuracy = {percent:.2f}% (7/1000)"),
        "eval/accuracy", EVALS),
    Log("bar.log", printed("\rTrain: 7%|#  | {step}/40 [00:09<01:00, 2.0s/it, pg=-0.01, reward={reward}]" * 3),
        "reward"),
    Log("notes.md", f"# A run\n\nAt step 3 the reward = 0.9\n\n```\n{printed('step={step} reward={reward}')}```\n"
        "\nThen step 70, reward: 0.1, was a typo.\n", "reward"),
    # tables
    Log("wandb.csv", cells("Step,a - eval/acc,a - eval/acc__MIN,b - eval/acc,b - eval/acc__MIN",
                           [(s, r, r, *((r, r) if s % 2 else ("", ""))) for s, r in STEPS]), "eval/acc", (40, 20)),
    Log("wandb_history.csv", wandb_history(), "eval/accuracy", EVALS),
    Log("wide.csv", cells("Step,0.6b,8b", [(s, r, r if s % 2 else "") for s, r in STEPS]), "value", (40, 20),
        facts="one_column_per_run"),
    Log("sums.csv", cells("Step,a,b", [(s, 200 * r, 180 * r) for s, r in STEPS]), "value", (40, 40), unit=200),
    Log("percents.csv", cells("Step,a,b", [(s, f"{100 * r}%", f"{90 * r}%") for s, r in STEPS]), "value", (40, 40)),
    *(Log(f"{column}.csv", arms(column), "reward", (40, 40), facts="runs_apart")
      for column in ("recipe", "arm", "model", "config", "method", "variant", "run")),
    Log("mlflow.csv", cells("run_id,key,value,step,timestamp",
                            [("r1", key, value, s, 1_700_000_000_000 + 60_000 * s)
                             for s, r in STEPS for key, value in (("loss", 0.1), ("eval/accuracy", r))]),
        "eval/accuracy"),
    Log("tensorboard.csv", cells("Wall time,Step,Value", [(1.7e9 + s, s, r) for s, r in STEPS]), "Value"),
    Log("newest_first.csv", cells("step,reward", STEPS[::-1]), "reward"),
    Log("header_again.csv", cells("step,reward", STEPS[:25]) + cells("step,reward", STEPS[20:]), "reward",
        facts="superseded"),
    Log("trailing.csv", "step,pass_rate\n" + printed("{step},{reward},"), "pass_rate"),
    Log("quoted.csv", '"step","reward"\n' + printed('"{step}","{reward}"'), "reward"),
    Log("decimal.csv", cells("step,reward", [(s, str(r).replace(".", ",")) for s, r in STEPS], ";"), "reward"),
    Log("percent.csv", cells("step,pass_rate", [(s, 100 * r) for s, r in STEPS]), "pass_rate", unit=100,
        facts="percent"),
    Log("win.csv", cells("step,eval_win_rate_percent,eval_avg_win_reward", [(s, 100 * r, 146 + s) for s, r in STEPS]),
        "eval_win_rate_percent", unit=100, facts="percent"),
    Log("phase.csv",
        cells("step,phase,reward", [(s, n, r * x) for s, r in STEPS for n, x in (("training", 2), ("test", 1))]),
        "test/reward", facts="evaluations_apart"),
    Log("within.csv", cells("epoch,step,reward", [(s // 10, s % 10, r) for s, r in STEPS]), "reward",
        facts="steps_per_epoch"),
    Log("resumed.csv", cells("step,reward", [*STEPS[:20], *((s, 0.1) for s, _ in STEPS[20:30]), *STEPS[20:]]), "reward",
        facts="superseded"),
    Log("table.md", drawn("|"), "reward"),
    Log("printed.txt", drawn("   "), "reward"),
    Log("blanks.txt", "step reward loss\n" + printed("{step} {reward} 0.1"), "reward"),
    Log("checkpoints.csv", cells("checkpoint,acc@8,acc@1", [(f"checkpoint-{s}0", 0.9, r) for s, r in STEPS]), "acc@1"),
    # JSON
    Log("by_step.json", json.dumps({f"step_{s}": {"accuracy": r, "n": 500} for s, r in STEPS}), "accuracy"),
    Log("events.jsonl", events(), "reward"),
    Log("after.jsonl", lines([{"step": s, "train/reward": r / 2} for s, r in STEPS])
        + lines([{"step": s, "eval/acc": r} for s, r in EVERY_4]), "eval/acc", EVALS),
    Log("split.jsonl",
        lines([{"step": s, "split": n, "acc": r * x} for s, r in STEPS for n, x in (("train", 0.5), ("eval", 1))]),
        "eval/acc"),
    Log("nested.jsonl", lines([{"step": s, "train": {"reward": {"mean": r / 2}}, "lr": float("nan"),
                                "eval": {"gsm8k": {"pass@1": r}} if s % 4 == 0 else None} for s, r in STEPS]),
        "eval/gsm8k/pass@1", EVALS),
    Log("text.jsonl", lines([{"step": str(s), "reward": str(r)} for s, r in STEPS]), "reward"),
    Log("rows.json", json.dumps([{"step": s, "reward": str(r)} for s, r in STEPS]), "reward"),
    Log("held.json", json.dumps([{"step": 10 * s + n, "reward_mean": r} for s, r in STEPS for n in range(10)]),
        "reward_mean", facts="held_values"),
    Log("numbers.json", json.dumps({"rewards": R}), "rewards", facts="rows_counted"),
    Log("saved.json", json.dumps([[1.7e9 + 60 * s, s, r] for s, r in STEPS]), "value"),
    Log("runs.json", json.dumps({n: {"step": list(range(1, 41)), "acc": R} for n in "ab"}), "acc", (40, 40)),
    Log("by_run.json", json.dumps({n: [{"step": s, "reward": r} for s, r in STEPS] for n in "ab"}), "reward", (40, 40)),
    Log("split.json", json.dumps({"train": [{"step": s, "loss": 0.1} for s, _ in STEPS],
                                  "eval": [{"step": s, "acc": r} for s, r in EVERY_4]}), "eval/acc", EVALS),
)  # fmt: skip


def read(path: Path, **options: Any) -> list[Series]:
    return series_from(read_tables([path]), Selection(**options))


def check(curves: list[Series], log: Log) -> None:
    assert [(series.y_label, len(series.compute)) for series in curves] == [(log.y, num) for num in log.points]
    rewards = [reward for _, reward in (EVERY_4 if log.points == EVALS else STEPS)]
    assert curves[0].reward.tolist() == pytest.approx(
        [log.unit * reward for reward in rewards], abs=6e-4 * abs(log.unit)
    )
    assert curves[0].start == (None if log.start is None else pytest.approx(log.start))
    assert not log.facts or log.facts in {fact.kind for series in curves for fact in series.facts}


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.name)
def test_log_is_read_without_options(tmp_path: Path, log: Log) -> None:
    path = tmp_path / log.name
    path.parent.mkdir(exist_ok=True)
    path.write_text(log.text, encoding="utf-8")
    check(read(path), log)


def test_rewards_of_a_run_that_collapsed_are_kept(tmp_path: Path) -> None:
    rewards = [1.3, 1.1, 4.1, *[0.0] * 11]
    (tmp_path / "log.csv").write_text(cells("step,reward", list(enumerate(rewards, start=1))))
    [series] = read(tmp_path / "log.csv")
    assert (series.reward.tolist(), series.y_scale) == (rewards, "none")


def test_text_that_records_no_step_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("histogram: nothing\nwe evaluated, and it was good\n" * 20)
    with pytest.raises(InputError, match="no line records a training step"):
        read(tmp_path / "a.log")


# Folders: one run in several files


def test_folder_of_one_run_in_three_formats_is_its_evaluations(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text(events())
    (tmp_path / "console.log").write_text(old_verl())
    (tmp_path / "evals.csv").write_text(cells("step,eval/acc", EVERY_4))
    [series] = read(tmp_path)
    [fact] = [fact for fact in series.facts if fact.kind == "other_logs"]
    assert (fact.values["file"], fact.values["others"]) == ("evals.csv", ("console.log", "events.jsonl"))
    check([series], Log("", "", "eval/acc", EVALS))


@pytest.mark.parametrize("place", ["{}.csv", "attempt-{}/metrics.csv"])
def test_resumed_files_of_a_folder_are_one_run(tmp_path: Path, place: str) -> None:
    for name, first, last in (("b", 1, 25), ("c", 16, 32), ("a", 29, 40)):
        path = tmp_path / place.format(name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(cells("step,reward,step_time", [(s, r, 60) for s, r in STEPS if first <= s <= last]))
    curves = read(tmp_path)
    check(curves, Log("", "", "reward", facts="files_joined"))
    assert curves[0].compute[-1] == pytest.approx(40 / 60)
    assert len(read(tmp_path, by=("file",))) == 3


def test_files_that_begin_alike_are_separate_runs(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text(cells("step,reward", STEPS))
    assert [series.name for series in read(tmp_path)] == ["a", "b"]


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
    (tmp_path / "log.csv").write_text(cells(f"step,reward,{column}", rows))
    [series] = read(tmp_path / "log.csv", gpus=8)
    assert series.x_label == "gpu_hours"
    assert series.compute.tolist() == pytest.approx([8.0 * hour for hour in range(1, 13)])
    [fact] = [fact for fact in series.facts if fact.kind == "clock_gaps"]
    assert fact.values["hours"] == pytest.approx(48)


# Real logs: file -> (format, reward, compute, points of each curve)

DEEP = "val-core/GSM8K/reward/mean@1"
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
    "foreign_logs/wandb_deep_grpo_collapse.csv": ("wandb", "val-core/openai/gsm8k/acc/mean@1", "Step", [185]),
    "foreign_logs/wandb_deep_grpo_dynamics.csv": ("wandb", DEEP, "Step", [591, 919]),
    "foreign_logs/wandb_deep_grpo_loss_weight.csv": ("wandb", DEEP, "Step", [590, 588, 504, 591]),
    "scalerl_published_curves.csv": ("csv", "pass_rate", "gpu_hours", [409]),
    "tan2025_qwen_base.csv": ("csv", "pass_at_1", "compute_flops", [732]),
}


@needs_shared_data
@pytest.mark.parametrize("name", REAL)
def test_real_log_is_read(name: str) -> None:
    tables = read_tables([FOLDER / name])
    curves = series_from(tables, Selection())
    kind, y, x, points = REAL[name]
    assert {table.kind for table in tables} == {kind}
    assert [(series.y_label, series.x_label, len(series.compute)) for series in curves] == [(y, x, n) for n in points]


@needs_shared_data
def test_three_attempts_of_verl_are_one_run() -> None:
    [series] = read(FOLDER / "foreign_logs/verl_attempts", x="_step")
    assert series.start == pytest.approx(0.00701, abs=1e-4)
    assert (series.compute[0], series.compute[-1]) == (4, 400)
    assert series.reward[-50:].mean() == pytest.approx(0.92, abs=0.02)
    [evaluated] = read(FOLDER / "foreign_logs/verl_attempts", x="_step", y="val/openai/gsm8k/reward/mean")
    assert evaluated.reward.tolist() == pytest.approx([0.007, 0.839, 0.864, 0.871, 0.875], abs=1e-3)
