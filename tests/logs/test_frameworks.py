"""Logs in the shapes that popular trainers and trackers write: each is read without an option."""

import csv
import io
import json
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tensorboardX
from log_texts import rising

from scalerl.logs.formats import read_tables
from scalerl.logs.series import Selection, Series, series_from

R = rising(40)
STEPS = list(enumerate(R, start=1))
EVERY_4 = [(step, reward) for step, reward in STEPS if step % 4 == 0]


def lines(rows: Sequence[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def cells(rows: Sequence[Sequence[Any]], delimiter: str = ",") -> str:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerows(rows)
    return text.getvalue()


def printed(template: str, steps: Sequence[tuple[int, float]] = STEPS) -> str:
    return "".join(template.format(step=step, reward=reward, percent=100 * reward) + "\n" for step, reward in steps)


# Training rewards and evaluations in one text: the evaluations are the curve.


def with_evaluations(train: str, evaluation: str) -> str:
    text = ""
    for step, reward in STEPS:
        text += train.format(step=step, reward=round(reward / 2, 4)) + "\n"
        text += evaluation.format(step=step, reward=reward) + "\n" if step % 4 == 0 else ""
    return text


def trl_history() -> str:
    rows: list[dict[str, Any]] = []
    for step, reward in STEPS:
        rows.append({"epoch": step / 40, "step": step, "loss": 0.1, "reward": 2 * reward, "reward_std": 0.2})
        if step % 4 == 0:
            rows.append({"epoch": step / 40, "step": step, "eval_reward": reward, "eval_loss": 0.1})
    return json.dumps({"best_metric": None, "global_step": 40, "log_history": rows}, indent=2)


def verl_console() -> str:
    text = "(TaskRunner pid=1) step:0 - val-core/gsm8k/acc/mean@1:0.301\n"
    for step, reward in STEPS:
        text += (
            f"\x1b[36m(TaskRunner pid=1)\x1b[0m step:{step} - actor/pg_loss:-0.01 - critic/score/mean:{reward / 2} - "
        )
        text += f"timing_s/step:36.0{f' - val-core/gsm8k/acc/mean@1:np.float64({reward})' if step % 4 == 0 else ''}\n"
        text += "(TaskRunner pid=1) Step 1: add 3 and 4, total = 7\n"
    return text


def nemo_rl() -> str:
    text = ""
    for step, reward in STEPS:
        text += f"\n========================= Step {step}/40 =========================\n▶ Preparing batch...\n"
        if step % 4 == 0:
            text += f"▶ Starting validation at step {step}...\n\n📊 Validation Results:\n    • Accuracy: {reward:.4f}\n"
            text += "    • Average response length: 190.0\n\n  ⏱️  Timing:\n    • Total validation time: 9.1s\n"
        text += f"\n📊 Training Results:\n  • Loss: 0.0100\n  • Avg Reward: {reward / 2:.4f}\n  • Mean Length: 181.0\n"
        text += "\n⏱️  Timing:\n  • Total step time: 36.00s\n"
    return text


def stable_baselines() -> str:
    text = "Using cpu device\n"
    for step, reward in STEPS:
        rows = [("rollout/", ""), ("   ep_len_mean", 100), ("   ep_rew_mean", round(200 * reward, 1))]
        rows += [("time/", ""), ("   fps", 900), ("   iterations", step), ("   total_timesteps", 2048 * step)]
        text += "-" * 38 + "\n" + "".join(f"| {name:18} | {value!s:11} |\n" for name, value in rows) + "-" * 38 + "\n"
    return text


def prime_rl() -> str:
    return with_evaluations(
        "10:00:01    INFO Step {step} | Time: 36.00s | Reward: {reward} | Throughput: 3500.7 tokens/s",
        "10:00:02 SUCCESS Evaluated math500 in 3.2s (Avg@4={reward}, Pass@4: 0.9512, Truncated: 3.0%)",
    )


def slime() -> str:
    text = ""
    for step, reward in STEPS:
        text += f"(RolloutManager pid=7) rollout.py:88 - rollout {step}: {{'rollout/raw_reward': {reward / 2}}}\n"
        text += f"(TrainActor pid=8) model.py:9 - step {2 * step}: {{'train/loss': 0.1}}\n"
        text += f"(TrainActor pid=8) model.py:9 - step {2 * step + 1}: {{'train/loss': 0.1}}\n"
        text += (
            f"(RolloutManager pid=7) rollout.py:90 - eval {step}: {{'eval/aime': {reward}}}\n" if step % 4 == 0 else ""
        )
    return text


def skyrl() -> str:
    return "".join(
        f"(skyrl_entrypoint pid=5) 2026-01-01 10:00:00.000 | INFO     | trainer:log:9 - Step {step}: "
        f"{{'reward/avg_raw_reward': {reward / 2}, 'policy/loss': 0.1, 'eval/all/avg_score': {reward}}}\n"
        for step, reward in STEPS
    )


def openrlhf() -> str:
    return printed("(PPOTrainer pid=3) INFO Global step {step}: {{'policy_loss': 0.1, 'reward': {reward}, 'kl': 0.01}}")


def wandb_wide() -> str:
    names = ["cispo-s0", "grpo-s0"]
    header = ["Step", *(f"{n} - eval/acc{end}" for n in names for end in ("", "__MIN", "__MAX"))]
    rows = [[step, *[reward] * 3, *([0.9 * reward] * 3 if step % 2 else [""] * 3)] for step, reward in STEPS]
    return cells([header, *rows])


def wide(header: Sequence[str] = ("Step", "0.6b", "8b")) -> str:
    return cells([header, *([step, reward, 0.9 * reward if step % 2 else ""] for step, reward in STEPS)])


def arms(column: str) -> str:
    rows = [[arm, step, scale * reward] for arm, scale in (("a", 1), ("b", 0.9)) for step, reward in STEPS]
    return cells([[column, "step", "reward"], *rows])


def per_metric(names: Sequence[str] = ("run_id", "key", "value", "step", "timestamp")) -> str:
    rows = [
        ["r1", key, value, step, 1_700_000_000_000 + 60_000 * step]
        for step, reward in STEPS
        for key, value in (("loss", 0.1), ("eval/accuracy", reward))
    ]
    return cells([names, *rows])


def history_then_evaluations() -> str:
    train = [{"step": step, "train/loss": 0.1, "train/reward": reward / 2} for step, reward in STEPS]
    return lines([*train, *({"step": step, "eval/acc": reward} for step, reward in EVERY_4)])


class Log(NamedTuple):
    name: str
    text: str
    y: str
    curves: int = 1
    points: int = 40
    scale: str = "1"
    start: bool = False


LOGS = (
    Log("trl/trainer_state.json", trl_history(), "eval_reward", points=10),
    Log("trl_quoted.log", printed("{{'loss': '0.0', 'reward': '{reward}', 'epoch': '0.{step:02}'}}"), "reward"),
    Log("verl.log", verl_console(), "val-core/gsm8k/acc/mean@1", points=10, start=True),
    Log(
        "verl.jsonl", lines([{"step": s, "data": {"critic/rewards/mean": r}} for s, r in STEPS]), "critic/rewards/mean"
    ),
    Log("nemo.log", nemo_rl(), "eval/Accuracy", points=10),
    Log("sb3.log", stable_baselines(), "rollout/ep_rew_mean", scale="none"),
    Log(
        "sb3/progress.csv",
        cells([["rollout/ep_rew_mean", "time/total_timesteps"], *([200 * r, 2048 * s] for s, r in STEPS)]),
        "rollout/ep_rew_mean",
        scale="none",
    ),
    Log("prime.log", prime_rl(), "eval/math500/avg@4", points=10),
    Log("slime.log", slime(), "eval/aime", points=10),
    Log("skyrl.log", skyrl(), "eval/all/avg_score"),
    Log("openrlhf.log", openrlhf(), "reward"),
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
    Log("wandb.csv", wandb_wide(), "eval/acc", curves=2),
    Log("wide.csv", wide(), "value", curves=2),
    *(Log(f"{column}.csv", arms(column), "reward", curves=2) for column in ("recipe", "arm", "model", "config")),
    *(Log(f"{column}.csv", arms(column), "reward", curves=2) for column in ("method", "variant", "run")),
    Log("mlflow.csv", per_metric(), "eval/accuracy"),
    Log("tensorboard.csv", cells([["Wall time", "Step", "Value"], *([1.7e9 + s, s, r] for s, r in STEPS)]), "Value"),
    Log("quoted.csv", "".join(f'"{a}","{b}"\n' for a, b in [("step", "reward"), *STEPS]), "reward"),
    Log("decimal.csv", cells([["step", "reward"], *((s, str(r).replace(".", ",")) for s, r in STEPS)], ";"), "reward"),
    Log("percent.csv", cells([["step", "pass_rate"], *((s, 100 * r) for s, r in STEPS)]), "pass_rate", scale="100"),
    Log("rows.json", json.dumps([{"step": s, "reward": str(r)} for s, r in STEPS]), "reward"),
    Log("runs.json", json.dumps({n: {"step": list(range(40)), "acc": R} for n in "ab"}), "acc", 2, 39, start=True),
    Log(
        "split.json",
        json.dumps(
            {"train": [{"step": s, "loss": 0.1} for s, _ in STEPS], "eval": [{"step": s, "acc": r} for s, r in EVERY_4]}
        ),
        "eval/acc",
        points=10,
    ),
    Log("after.jsonl", history_then_evaluations(), "eval/acc", points=10),
    Log("prints.log", printed("Step {step}: loss = 0.12, mean reward = {reward}"), "mean reward"),
    Log("spaces.log", printed("iter {step} loss 0.12 reward {reward}"), "reward"),
    Log("episodes.log", printed("Episode {step}/40 | Reward: {reward} | Epsilon: 0.1"), "Reward"),
    Log(
        "within.log",
        "".join(f"Epoch {(s - 1) // 10}, step {(s - 1) % 10 + 1}/10: reward = {r}\n" for s, r in STEPS),
        "reward",
    ),
    Log("within.csv", cells([["epoch", "step", "reward"], *((s // 10, s % 10, r) for s, r in STEPS)]), "reward"),
    Log("thousands.log", printed("Step {step},000 | reward: {reward}"), "reward"),
    Log(
        "rllib/result.json",
        lines([{"training_iteration": s, "env_runners": {"episode_return_mean": 200 * r}} for s, r in STEPS]),
        "env_runners/episode_return_mean",
        scale="none",
    ),
    Log("epochs.log", printed("Epoch {step} - loss: 0.12 - val_acc: {percent:.2f}%"), "val_acc"),
    Log(
        "json_prints.log",
        printed('INFO:trainer:{{"step": {step}, "metrics": {{"reward": {reward}}}}}'),
        "metrics/reward",
    ),
    Log(
        "evaluating.log",
        with_evaluations("step {step} reward={reward}", "Evaluation at step {step}: accuracy={reward}"),
        "eval/accuracy",
        points=10,
    ),
    Log(
        "split.jsonl",
        lines([{"step": s, "split": n, "acc": r * x} for s, r in STEPS for n, x in (("train", 0.5), ("eval", 1))]),
        "eval/acc",
    ),
    Log(
        "phase.csv",
        cells(
            [["step", "phase", "reward"], *((s, n, r * x) for s, r in STEPS for n, x in (("training", 2), ("test", 1)))]
        ),
        "test/reward",
    ),
    Log("sums.csv", cells([["Step", "a", "b"], *((s, 200 * r, 180 * r) for s, r in STEPS)]), "value", 2, scale="none"),
    Log(
        "bar.log",
        "".join(f"\rTrain: {s}%|#  | {s}/40 [00:0{s % 9}<01:00, 2.0s/it, pg=-0.01, reward={r}]" * 3 for s, r in STEPS),
        "reward",
    ),
    Log("blanks.txt", "step reward loss\n" + printed("{step} {reward} 0.1"), "reward"),
    Log(
        "notes.md",
        f"# Run\n\nWe ran it.\n\n```\n{printed('step={step} reward={reward}')}```\nDone at step 99.\n",
        "reward",
    ),
)


def read(path: Path) -> list[Series]:
    return series_from(read_tables([path]), Selection())


def check(curves: list[Series], log: Log) -> None:
    assert [series.y_label for series in curves] == [log.y] * log.curves
    assert {series.y_scale for series in curves} == {log.scale}
    first = curves[0]
    assert len(first.compute) == log.points
    unit = {"none": 200, "100": 100}.get(log.scale, 1)
    expected = dict(EVERY_4 if log.points == 10 else STEPS)
    rewards = list(expected.values())[-log.points :]
    assert first.reward.tolist() == pytest.approx([unit * reward for reward in rewards], abs=6e-4 * unit)
    assert (first.start is not None) == log.start


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.name)
def test_log_is_read_without_options(tmp_path: Path, log: Log) -> None:
    path = tmp_path / log.name
    path.parent.mkdir(exist_ok=True)
    path.write_text(log.text, encoding="utf-8")
    check(read(path), log)


def mlflow_folder(folder: Path) -> Path:
    for run in ("a", "b"):
        (folder / "mlruns/0" / run / "metrics/eval").mkdir(parents=True)
        (folder / "mlruns/0" / run / "meta.yaml").write_text("artifact_uri: x\n")
        text = "".join(f"{1_700_000_000_000 + 60_000 * step} {reward} {step}\n" for step, reward in STEPS)
        (folder / "mlruns/0" / run / "metrics/eval/acc").write_text(text)
    return folder


def mlflow_database(folder: Path) -> Path:
    with sqlite3.connect(folder / "mlflow.db") as database:
        database.execute("CREATE TABLE metrics (key TEXT, value REAL, timestamp INTEGER, run_uuid TEXT, step INTEGER)")
        for run in ("a", "b"):
            rows = [("eval/acc", reward, 1_700_000_000_000 + 60_000 * step, run, step) for step, reward in STEPS]
            rows += [("loss", 0.1, 1_700_000_000_000 + 60_000 * step, run, step) for step, _ in STEPS]
            database.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?)", rows)
    return folder / "mlflow.db"


@pytest.mark.parametrize("make", [mlflow_folder, mlflow_database])
def test_mlflow_is_read(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    curves = read(make(tmp_path))
    check(curves, Log("", "", "eval/acc", curves=2))
    assert {series.x_label for series in curves} == {"hours"}


def test_folders_of_training_and_evaluation_are_one_run(tmp_path: Path) -> None:
    for name, tag, scale in (("train", "reward", 0.5), ("validation", "acc", 1.0)):
        writer = tensorboardX.SummaryWriter(str(tmp_path / name))
        for step, reward in STEPS:
            writer.add_scalar(tag, scale * reward, step, walltime=1.7e9 + 60 * step)
        writer.close()
    check(read(tmp_path), Log("", "", "validation/acc"))


def test_attempts_in_folders_of_their_own_are_one_run(tmp_path: Path) -> None:
    for number, (first, last) in enumerate([(1, 20), (16, 30), (26, 40)]):
        (tmp_path / f"attempt{number}").mkdir()
        rows = [{"step": step, "reward": reward} for step, reward in STEPS if first <= step <= last]
        (tmp_path / f"attempt{number}" / "metrics.jsonl").write_text(lines(rows))
    check(read(tmp_path), Log("", "", "reward"))
