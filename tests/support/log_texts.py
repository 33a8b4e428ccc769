"""Logs in the shapes that trainers, trackers and people write, as texts, with what is to be read from each."""

import csv
import io
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

RAY = "\x1b[36m(main_task pid=926049)\x1b[0m "


def rising(num: int) -> list[float]:
    """Rewards that rise from 0.30 towards 0.70."""
    return [round(0.3 + 0.4 * step / (step + num / 4), 4) for step in range(1, num + 1)]


def verl(rewards: Sequence[float], first: int = 1, every: int = 1) -> str:
    """verl behind Ray's coloured prefix: evaluations every few steps, NUL bytes and other lines in between."""
    lines = ["\0\0\0Loading checkpoint shards: 100%|##| 4/4 [00:01<00:00,  3.1it/s]", f"{RAY}WARNING: a, b, or: c"]
    for step, reward in enumerate(rewards, start=first):
        line = f"step:{step} - actor/kl_loss:0.001 - actor/lr:1e-06 - timing_s/step:36.000 - critic/score/mean:{reward}"
        line += f" - critic/score/max:1.000 - val-core/openai/gsm8k/acc/mean@1:{reward}" if step % every == 0 else ""
        lines += [f"{RAY}{line} - perf/throughput:np.float64(1234.5)", f"{RAY}Training Progress:  1%|1   | {step}/435"]
    return "\n".join(lines) + "\n"


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
    """Number of evaluations of each curve; ten are the evaluations of every fourth step."""
    unit: float = 1.0
    start: float | None = None
    facts: str = ""


EVALS = (10,)
LOGS = (
    # trainers
    Log("trl/trainer_state.json", trl_history(), "eval_reward", EVALS),
    Log("trl_quoted.log", printed("{{'loss': '0.0', 'reward': '{reward}', 'epoch': '0.{step:02}'}}"), "reward",
        facts="lines_taken"),
    Log("trl_tables.log", trl_with_tables(), "reward", (40, 40, 40), facts="attempts"),
    Log(
        "trl_evals.log",
        printed("\r {step}%|██ | {step}/40 [00:11<03:00]\r   \r{{'num_tokens': {step}, 'reward': {half}}}",
                "{{'eval_loss': 0.01, 'eval_reward': {reward}, 'eval_runtime': 12.3, 'epoch': 0.1}}"),
        "eval_reward", EVALS,
    ),
    Log("verl_ray.log", verl(R), "val-core/openai/gsm8k/acc/mean@1"),
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
    Log("spinning_up/progress.txt", cells("Epoch,AverageEpRet,StdEpRet,TotalEnvInteracts,Time",
                                          [(s - 1, 200 * r, 5, 4000 * s, 30 * s) for s, r in STEPS], "\t"),
        "AverageEpRet", unit=200),
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
                "(RolloutManager pid=7) rollout.py:89 - perf {step}: {{'perf/rollout_time': 3.2}}\n"
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
    Log(
        "tinker.log",
        "".join("[a] 7473 examples | model=Q/Q-8B seed=42 lr=3e-05\n"
                + printed(f"[{run}]  {{step:2}}/40 | loss=-0.9862 | acc={{percent:.2f}}%") + f"[{run}] == REPORT ==\n"
                for run in "ab"),
        "acc", (40, 40),
    ),
    # lines that people print
    Log("free.log", evaluations_by_the_line_before(), "eval/accuracy"),
    Log("prints.log", printed("Step {step}: loss = 0.12, mean reward = {reward}"), "mean reward"),
    Log("spaces.log", printed("iter {step} loss 0.12 reward {reward}"), "reward"),
    Log("commas.log", printed("[RANK 0] step {step}: loss 0.12, mean_reward {reward}, time 36.5s"), "mean_reward"),
    Log("episodes.log", printed("Episode {step}/40 | Reward: {reward} | Epsilon: 0.1"), "Reward"),
    Log("within.log",
        "".join(f"Epoch {(s - 1) // 10}, step {(s - 1) % 10 + 1}/10: reward = {r}\n" for s, r in STEPS), "reward"),
    Log("thousands.log", printed("Step {step},000 | reward: {reward}"), "reward"),
    Log("epochs.log", printed("Epoch {step} - loss: 0.12 - val_acc: {percent:.2f}%"), "val_acc"),
    Log("json.log", printed('INFO:trainer:{{"step": {step}, "metrics": {{"reward": {reward}}}}}'), "reward"),
    Log("evaluating.log", printed("step {step} reward={half}", "Evaluation at step {step}: accuracy={reward}"),
        "eval/accuracy", EVALS),
    Log("iter.log", printed("[Iter {step:03d}] loss 0.1 | mean_reward {half:.3f}",
                            "[Iter {step:03d}] Evaluation: accuracy = {percent:.2f}% (7/1000)"),
        "eval/accuracy", EVALS),
    Log("bar.log", printed("\rTrain: 7%|#  | {step}/40 [00:09<01:00, 2.0s/it, pg=-0.01, reward={reward}]" * 3),
        "reward"),
    Log("keras.log", printed("Epoch {step}/40\n100/100 ━━━━━ 3s 2ms/step - loss: 0.3 - val_accuracy: {reward}"),
        "val_accuracy"),
    Log("tune.log", printed("Trial a finished iteration {step} at 10:00:00.\n╭─────╮\n│ Trial a result │\n├─────┤\n"
                            "│ episode_return_mean {percent:.2f} │\n│ num_env_steps {step}000 │\n╰─────╯"),
        "episode_return_mean", unit=100),
    Log("eval_blocks.log", printed("Step {step}: reward={half}", "=== Evaluation ===\n  accuracy: {reward}\n====="),
        "eval/accuracy", EVALS),
    Log("own_names.log", printed("rollout_step={step} returns={percent:.2f} loss=0.1 kl= 0.01"), "returns", unit=100),
    Log("mlx.log", printed("Iter {step}: Train loss 0.1, Total rewards mean {half:.4f}, Total rewards std 0.2, Lr 1",
                           "Iter {step}: Val loss 0.1, Val total_rewards_mean {reward:.4f}, Val took 33.1s"),
        "Val total_rewards_mean", EVALS),
    Log("brackets.log", "  max_steps: 500\n  seed: 42\n" + printed("[{step}/500] loss=0.1 reward={reward}"), "reward"),
    Log("ep.log", printed("Collecting: 100%|###| 2048/2048 [00:03<00:00]\n  Ep {step:2} | Reward: {reward}"), "Reward"),
    Log("counts.log", printed("Epoch 1 | Batch {step} | train acc 12/512 ({percent:.2f}%)"), "train acc"),
    Log("notes.md", f"# A run\n\nAt step 3 the reward = 0.9\n\n```\n{printed('step={step} reward={reward}')}```\n"
        "\nThen step 70, reward: 0.1, was a typo.\n", "reward"),
    # tables
    Log("wandb.csv", cells("Step,a - eval/acc,a - eval/acc__MIN,b - eval/acc,b - eval/acc__MIN",
                           [(s, r, r, *((r, r) if s % 2 else ("", ""))) for s, r in STEPS]), "eval/acc", (40, 20)),
    Log("wandb_history.csv", wandb_history(), "eval/accuracy", EVALS),
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
    Log("blanks.txt", "step reward loss\n" + printed("{step} {reward} 0.1"), "reward"),
    Log("checkpoints.csv", cells("checkpoint,acc@8,acc@1", [(f"checkpoint-{s}0", 0.9, r) for s, r in STEPS]), "acc@1"),
    # JSON
    Log("by_step.json", json.dumps({f"step_{s}": {"accuracy": r, "n": 500} for s, r in STEPS}), "accuracy"),
    Log("pretty.jsonl", "\n".join(json.dumps({"step": s, "reward": r}, indent=1) for s, r in STEPS), "reward"),
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
    Log("lists.json", json.dumps({"model": "a", "losses": [0.1] * 200, "rewards": R, "kl": [0.1] * 40}), "rewards"),
    Log("by_metric.json", json.dumps({"reward": [[s, r] for s, r in STEPS], "loss": [[s, 0.1] for s, _ in STEPS]}),
        "reward"),
    Log("histories.json", json.dumps([{"name": n, "lr": 1, "history": [{"step": s, "reward": r} for s, r in STEPS]}
                                      for n in ("a", "b")]), "reward", (40, 40)),
    Log("comet.json", json.dumps([{"metricName": "reward", "metricValue": str(r), "step": s} for s, r in STEPS]),
        "reward"),
    Log("saved.json", json.dumps([[1.7e9 + 60 * s, s, r] for s, r in STEPS]), "value"),
    Log("runs.json", json.dumps({n: {"step": list(range(1, 41)), "acc": R} for n in "ab"}), "acc", (40, 40)),
    Log("by_run.json", json.dumps({n: [{"step": s, "reward": r} for s, r in STEPS] for n in "ab"}), "reward", (40, 40)),
    Log("split.json", json.dumps({"train": [{"step": s, "loss": 0.1} for s, _ in STEPS],
                                  "eval": [{"step": s, "acc": r} for s, r in EVERY_4]}), "eval/acc", EVALS),
)  # fmt: skip
