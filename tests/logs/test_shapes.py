"""Shapes of real logs, made up from the outside: each is read without an option as what it is."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from log_texts import rising
from shared_data import FOLDER, needs_shared_data

from scalerl.errors import InputError
from scalerl.logs.formats import read_tables
from scalerl.logs.series import Selection, Series, series_from


def read(path: Path, **options: object) -> list[Series]:
    return series_from(read_tables([path]), Selection(**options))  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Shape:
    name: str
    text: str
    curves: tuple[tuple[str, int], ...]
    """(reward column, points) of each curve."""
    first: float
    last: float
    start: float | None = None
    facts: tuple[str, ...] = ()


R = rising(50)


def wide() -> str:
    rows = [
        f"{step},{'' if step % 3 else 0.1 + step / 100},{0.7 + step / 500:.3f},{0.6 + step / 500:.3f}"
        for step in range(40)
    ]
    return "Step,0.6b,14b,8b\n" + "\n".join(rows) + "\n"


def evaluations_by_the_line_before() -> str:
    lines = ["Loading model, batch 4"]
    for step in range(20):
        right = round(1319 * (0.04 + 0.03 * step))
        lines += [f"GRPO Iteration {step}, Epoch 0, Evaluating..."]
        lines += [f"histogram:  {{'correct with both format and answer': {right}, 'format reward 1': {1319 - right}}}"]
        lines += ["Metrics:  {'format_reward': 1.0, 'answer_reward': 1.0, 'reward': 1.0}"]
        lines += [f"GRPO Iteration {step}, Epoch 0"]
        lines += ["histogram:  {'correct with both format and answer': 20, 'format reward 1': 236}"] * 3
        lines += ["Metrics:  {'format_reward': 1.0, 'answer_reward': 0.0, 'reward': 0.0}"]
    return "\n".join(lines) + "\n"


def trl_with_tables(num: int = 3) -> str:
    text = ""
    for run in range(num):
        for step in range(1, 51):
            text += f"\r {2 * step}%|▍   | {step}/50 [00:11<03:57,  1.2s/it]\n"
            text += f"{{'loss': '0.0012', 'reward': '{(run + 1) * R[step - 1]:.4f}', 'epoch': '0.04'}}\n"
            if step % 10 == 0:
                text += f"╭──────── Step {step} ────────╮\n│ Prompt │ reward │\n│ a: 1 │ b │ 0.50 │\n╰─────────╯\n"
    return text


def nemo_rl() -> str:
    text = ""
    for step in range(1, 51):
        text += f"(pid=7) ========== Step {step}/50 ==========\n▶ Generating responses...\n"
        if step % 10 == 0:
            text += (
                f"▶ Starting validation at step {step}...\n╭────────────╮\n│ TRAINING STEP {step} │\n╰────────────╯\n"
            )
            text += (
                f"  • Avg Reward: {0.9 + step / 1000}\n📊 Validation Results:\n    • Accuracy: {0.9 + step / 1000}\n"
            )
        text += f"📊 Training Results:\n  • Loss: 0.01\n  • Avg Reward: {R[step - 1]}\n"
    return text


def minimind() -> str:
    lines = (
        f"Epoch:[1/1]({step}/9751), Reward: {-1.83 + step / 1e4:.4f}, KL_ref: 0.01, lr: 1e-6" for step in range(1, 101)
    )
    return "\n".join(lines) + "\n"


def old_verl() -> str:
    lines = ["\x1b[36m(main_task pid=1)\x1b[0m step:0 - val/test_score/gsm8k:0.121"]
    lines += [
        f"(main_task pid=1) step:{step} - actor/loss:0.1 - critic/score/mean:np.float64({R[step - 1]})"
        for step in range(1, 51)
    ]
    return "\n".join(lines) + "\n"


def events() -> str:
    rows = []
    for step in range(1, 51):
        rows += [{"event": "rollout_started", "id": n, "payload": {"prompt": "a"}} for n in range(10)]
        rows.append({"event": "train_step_done", "metrics": {"optimizer_step": step, "reward": R[step - 1]}})
    return "".join(json.dumps(row) + "\n" for row in rows)


def markdown() -> str:
    lines = "\n".join(f"step={step} loss=0.1 reward={R[step - 1]}" for step in range(1, 51))
    return f"# A run\n\nAt step 3 the reward = 0.9\n\n```text\n{lines}\n```\n\nThen step 70, reward: 0.1, was a typo.\n"


def held() -> str:
    rows = [{"step": step, "reward_mean": 0.4 + 0.001 * (step // 10)} for step in range(10, 500)]
    return json.dumps(rows)


def resumed() -> str:
    steps = [*range(1, 31), *range(21, 51)]
    return "step,reward\n" + "".join(
        f"{step},{R[step - 1] + (0.001 if at >= 30 else 0)}\n" for at, step in enumerate(steps)
    )


def arms() -> str:
    rows = [f"{arm},{step},{R[step - 1] * scale:.4f}" for arm, scale in (("a", 1), ("b", 1.2)) for step in range(1, 51)]
    return "recipe,step,reward\n" + "\n".join(rows) + "\n"


def win_rate() -> str:
    rows = [f"{step},{100 * R[step]:.2f},{146 + step / 100},0.5" for step in range(50)]
    return "step,eval_win_rate_percent,eval_avg_win_reward,loss\n" + "\n".join(rows) + "\n"


def collapse() -> str:
    return "step,reward\n" + "".join(
        f"{at},{reward}\n" for at, reward in enumerate([1.3, 1.1, 4.1, *[0] * 11], start=1)
    )


def console_dicts() -> str:
    return "".join(f"{{'loss': '0.1', 'reward': '{reward}', 'step': '{at}'}}\n" for at, reward in enumerate(R, start=1))


def drawn(separator: str) -> str:
    rule = "|---|---|---|\n" if separator == "|" else ""
    rows = "".join(separator.join(("", str(at), "0.1", str(reward), "")) + "\n" for at, reward in enumerate(R, start=1))
    return (
        f"Some words  here.\n\n{separator.join(('', 'Step', 'Training Loss', 'reward', ''))}\n{rule}{rows}\nThe end.\n"
    )


def one(column: str, points: int) -> tuple[tuple[str, int], ...]:
    return ((column, points),)


SHAPES = (
    Shape(
        name="wide.csv",
        text=wide(),
        curves=(("value", 13), ("value", 39), ("value", 39)),
        first=0.13,
        last=0.678,
        start=0.1,
        facts=("one_column_per_run",),
    ),
    Shape(
        name="free.log",
        text=evaluations_by_the_line_before(),
        curves=one("eval/accuracy", 19),
        first=0.07,
        last=0.61,
        start=0.04,
    ),
    Shape(
        name="trl.log",
        text=trl_with_tables(),
        curves=(("reward", 50),) * 3,
        first=R[0],
        last=3 * R[-1],
        facts=("attempts",),
    ),
    Shape(name="nemo.log", text=nemo_rl(), curves=one("Avg Reward", 50), first=R[0], last=R[-1]),
    Shape(
        name="minimind.log", text=minimind(), curves=one("Reward", 100), first=-1.8299, last=-1.82, facts=("own_scale",)
    ),
    Shape(
        name="verl.log",
        text=old_verl(),
        curves=one("critic/score/mean", 50),
        first=R[0],
        last=R[-1],
        start=0.121,
        facts=("start_from_evaluation",),
    ),
    Shape(name="events.jsonl", text=events(), curves=one("reward", 50), first=R[0], last=R[-1]),
    Shape(name="notes.md", text=markdown(), curves=one("reward", 50), first=R[0], last=R[-1]),
    Shape(
        name="held.json", text=held(), curves=one("reward_mean", 49), first=0.401, last=0.449, facts=("held_values",)
    ),
    Shape(
        name="resumed.csv",
        text=resumed(),
        curves=one("reward", 50),
        first=R[0],
        last=R[-1] + 0.001,
        facts=("superseded",),
    ),
    Shape(
        name="arms.csv",
        text=arms(),
        curves=(("reward", 50), ("reward", 50)),
        first=R[0],
        last=1.2 * R[-1],
        facts=("runs_apart",),
    ),
    Shape(
        name="win.csv",
        text=win_rate(),
        curves=one("eval_win_rate_percent", 49),
        first=100 * R[1],
        last=100 * R[-1],
        start=100 * R[0],
        facts=("percent",),
    ),
    Shape(name="collapse.csv", text=collapse(), curves=one("reward", 14), first=1.3, last=0.0, facts=("own_scale",)),
    Shape(name="quoted.log", text=console_dicts(), curves=one("reward", 50), first=R[0], last=R[-1]),
    Shape(
        name="numbers.json",
        text=json.dumps({"rewards": R}),
        curves=one("rewards", 50),
        first=R[0],
        last=R[-1],
        facts=("rows_counted",),
    ),
    Shape(
        name="by_run.json",
        text=json.dumps(
            {name: [{"step": at, "reward": reward} for at, reward in enumerate(R, start=1)] for name in "ab"}
        ),
        curves=(("reward", 50), ("reward", 50)),
        first=R[0],
        last=R[-1],
    ),
    Shape(name="table.md", text=drawn("|"), curves=one("reward", 50), first=R[0], last=R[-1]),
    Shape(name="printed.txt", text=drawn("   "), curves=one("reward", 50), first=R[0], last=R[-1]),
    Shape(
        name="saved.json",
        text=json.dumps([[1.7e9 + 60 * at, at, reward] for at, reward in enumerate(R, start=1)]),
        curves=one("value", 50),
        first=R[0],
        last=R[-1],
    ),
    Shape(
        name="text.jsonl",
        text="".join(
            json.dumps({"step": str(at), "reward": str(reward)}) + "\n" for at, reward in enumerate(R, start=1)
        ),
        curves=one("reward", 50),
        first=R[0],
        last=R[-1],
    ),
)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_shape_is_read_as_what_it_is(tmp_path: Path, shape: Shape) -> None:
    (tmp_path / shape.name).write_text(shape.text, encoding="utf-8")
    curves = read(tmp_path / shape.name)
    assert tuple((series.y_label, len(series.compute)) for series in curves) == shape.curves
    assert (curves[0].reward[0], curves[-1].reward[-1]) == pytest.approx((shape.first, shape.last), abs=5e-4)
    assert curves[0].start == (None if shape.start is None else pytest.approx(shape.start, abs=1e-3))
    assert set(shape.facts) <= {fact.kind for series in curves for fact in series.facts}


def test_folder_of_one_run_in_three_formats_is_its_evaluations(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text(events())
    (tmp_path / "console.log").write_text(old_verl())
    (tmp_path / "evals.csv").write_text("step,eval/acc\n" + "".join(f"{at},{R[at]}\n" for at in range(1, 20)))
    [series] = read(tmp_path)
    [fact] = [fact for fact in series.facts if fact.kind == "other_logs"]
    assert (fact.values["file"], fact.values["others"]) == ("evals.csv", ("console.log", "events.jsonl"))
    assert (series.y_label, len(series.compute)) == ("eval/acc", 19)


def test_text_that_records_no_step_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("histogram: nothing\nwe evaluated, and it was good\n" * 20)
    with pytest.raises(InputError, match="no line records a training step"):
        read(tmp_path / "a.log")


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
    rows = [f"{at},{R[at]},{moment(time)}" for at, time in enumerate(seconds)]
    (tmp_path / "log.csv").write_text(f"step,reward,{column}\n" + "\n".join(rows) + "\n")
    [series] = read(tmp_path / "log.csv", gpus=8)
    assert (series.x_label, series.compute.tolist()) == (
        "gpu_hours",
        pytest.approx([8.0 * hour for hour in range(1, 13)]),
    )
    [fact] = [fact for fact in series.facts if fact.kind == "clock_gaps"]
    assert fact.values["hours"] == pytest.approx(48)


# Files of one run


def test_resumed_files_of_a_folder_are_one_run(tmp_path: Path) -> None:
    spans = {"b": (1, 30), "c": (21, 40), "a": (36, 50)}
    for name, (first, last) in spans.items():
        rows = "".join(f"{step},{R[step - 1]},60\n" for step in range(first, last + 1))
        (tmp_path / f"{name}.csv").write_text(f"step,reward,step_time\n{rows}")
    [series] = read(tmp_path)
    assert series.reward.tolist() == R
    assert series.compute[-1] == pytest.approx(50 / 60)
    [fact] = [fact for fact in series.facts if fact.kind == "files_joined"]
    assert fact.values["files"] == ("b.csv", "c.csv", "a.csv")
    assert [series.name for series in read(tmp_path, by=("file",))] == ["a", "b", "c"]


def test_files_that_begin_alike_are_separate_runs(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("step,reward\n" + "".join(f"{at},{R[at]}\n" for at in range(1, 40)))
    assert [series.name for series in read(tmp_path)] == ["a", "b"]


# Real logs: file -> (format, reward, compute, points of each curve)

REAL = {
    "foreign_logs/fair_rlvr_step_logs.json": ("jsonl", "reward_mean", "step", [98]),
    "foreign_logs/tinker_arithmetic_metrics.jsonl": ("jsonl", "env/all/reward/total", "hours", [100]),
    "foreign_logs/tinker_cookbook_1.jsonl": ("jsonl", "reward/mean", "hours", [30]),
    "foreign_logs/tinker_cookbook_3.jsonl": ("jsonl", "reward/mean", "hours", [50]),
    "foreign_logs/tinker_cookbook_4.jsonl": ("jsonl", "reward/mean", "hours", [60]),
    "foreign_logs/tinker_gsm8k_s042.log": ("console", "acc", "step", [50]),
    "foreign_logs/tinker_gsm8k_s137.log": ("console", "acc", "step", [50]),
    "foreign_logs/trl_gemma3_trainer_state.json": ("trainer_state", "reward", "step", [25]),
    "foreign_logs/trl_text2sql_trainer_state.json": ("trainer_state", "reward", "num_tokens", [200]),
    "foreign_logs/trl_unsloth_trainer_state.json": ("trainer_state", "reward", "step", [250]),
    "foreign_logs/verl_attempts": ("csv", "critic/score/mean", "hours", [397]),
    "foreign_logs/wandb_deep_grpo_collapse.csv": ("wandb", "val-core/openai/gsm8k/acc/mean@1", "Step", [185]),
    "foreign_logs/wandb_deep_grpo_dynamics.csv": ("wandb", "val-core/GSM8K/reward/mean@1", "Step", [591, 919]),
    "foreign_logs/wandb_deep_grpo_loss_weight.csv": (
        "wandb",
        "val-core/GSM8K/reward/mean@1",
        "Step",
        [590, 588, 504, 591],
    ),
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
    assert [(series.y_label, series.x_label, len(series.compute)) for series in curves] == [
        (y, x, num) for num in points
    ]


@needs_shared_data
def test_three_attempts_of_verl_are_one_run() -> None:
    [series] = read(FOLDER / "foreign_logs/verl_attempts", x="_step")
    assert series.start == pytest.approx(0.00701, abs=1e-4)
    assert (series.compute[0], series.compute[-1]) == (4, 400)
    assert series.reward[-50:].mean() == pytest.approx(0.92, abs=0.02)
    [evaluated] = read(FOLDER / "foreign_logs/verl_attempts", x="_step", y="val/openai/gsm8k/reward/mean")
    rewards = [0.007, 0.839, 0.864, 0.871, 0.875]
    assert evaluated.reward.tolist() == pytest.approx(rewards, abs=1e-3)
