"""Trained completions a second of the whole loop, against TRL's GRPOTrainer in the same run.

    pip install trl; python benchmarks/step_speed.py [--steps 8] [--threads 2]

The same for both: the embedded 0.86M-parameter Llama, sums to solve, 128 completions a step (16 problems x 8) of up to
48 tokens at temperature 1, CISPO with an absolute cap of 5, AdamW, FP32, CPU threads. Nothing is evaluated or saved.
Sampled tokens a completion are printed for both: they must agree for the comparison to mean anything.
"""

import argparse
import importlib
import importlib.util
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from scalerl.config import load_recipe
from scalerl.tasks.graders import exact
from scalerl.train.run import Run
from scalerl.train.setup import Setup, resolve_model

TARGET = 2.5
GROUPS, PER_GROUP, LONGEST = 16, 8, 48
SETTINGS = (
    "length.name=none",
    f"length.max_length={LONGEST}",
    f"pipeline.groups_per_batch={GROUPS}",
    f"pipeline.completions_per_group={PER_GROUP}",
    "optimizer.lr=1e-6",
    "optimizer.warmup_steps=0",
    "evaluation.num_prompts=1",
    "evaluation.samples_per_prompt=1",
    "evaluation.every=100000",
    "checkpoint.every=100000",
)


def ours(steps: int) -> dict[str, float]:
    """Steps of the real loop, from the first one on that follows a warm-up."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(load_recipe("tiny-cpu", [*SETTINGS, f"budget.steps={steps + 2}"]), Path(folder) / "run")
        times, tokens = [], []
        for done in run.pipeline.steps():
            times.append(time.perf_counter())
            tokens.append(sum(len(one) for group in done.batch.groups for one in group.completions))
            if len(times) == steps + 1:
                break
    seconds = times[-1] - times[0]
    return {"rate": steps * GROUPS * PER_GROUP / seconds, "tokens": sum(tokens[1:]) / (steps * GROUPS * PER_GROUP)}


def trl(steps: int) -> dict[str, float]:
    """The same through TRL: one optimiser step a generation, the whole batch at once."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

    # By name: TRL is needed for this benchmark alone, and is no dependency of ours.
    datasets: Any = importlib.import_module("datasets")
    peer: Any = importlib.import_module("trl")

    path = resolve_model("tiny-base")
    tokenizer = AutoTokenizer.from_pretrained(path)
    task = Setup(load_recipe("tiny-cpu", SETTINGS)).task
    rows = [{"prompt": one.prompt, "answer": one.answer} for one in task.training[: GROUPS * (steps + 4)]]
    lengths: list[int] = []

    def reward(completions: list[str], completion_ids: list[list[int]], answer: list[str], **_: Any) -> list[float]:
        lengths.extend(len(ids) for ids in completion_ids)
        return [1.0 if exact(text, wanted) else -1.0 for text, wanted in zip(completions, answer, strict=True)]

    class Times(TrainerCallback):
        def __init__(self) -> None:
            self.ends: list[float] = []

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.ends.append(time.perf_counter())

    times = Times()
    with tempfile.TemporaryDirectory() as folder:
        trainer = peer.GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32),
            processing_class=tokenizer,
            reward_funcs=reward,
            train_dataset=datasets.Dataset.from_list(rows),
            callbacks=[times],
            args=peer.GRPOConfig(
                output_dir=folder,
                per_device_train_batch_size=GROUPS * PER_GROUP,
                num_generations=PER_GROUP,
                max_completion_length=LONGEST,
                loss_type="cispo",
                epsilon_high=5.0,
                scale_rewards="batch",
                beta=0.0,
                temperature=1.0,
                top_k=0,
                learning_rate=1e-6,
                max_steps=steps + 1,
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                report_to=[],
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
            ),
        )
        trainer.train()
    seconds = times.ends[-1] - times.ends[0]
    measured = lengths[-steps * GROUPS * PER_GROUP :]
    return {"rate": steps * GROUPS * PER_GROUP / seconds, "tokens": sum(measured) / len(measured)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--threads", type=int, help="of torch; all cores unless told")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore")
    if importlib.util.find_spec("trl") is None:
        print("TRL is not installed, so there is nothing to compare with: pip install trl")
        return 0
    # In turn and twice, so that a busy machine slows both; the better of two.
    found = {"scalerl": ours(arguments.steps), "TRL GRPOTrainer": trl(arguments.steps)}
    for name, work in (("scalerl", ours), ("TRL GRPOTrainer", trl)):
        again = work(arguments.steps)
        found[name] = max(found[name], again, key=lambda row: row["rate"])
    table = Table(box=None)
    for column in ("loop", "trained completions/s", "tokens a completion", "ratio"):
        table.add_column(column, justify="right")
    peer = found["TRL GRPOTrainer"]["rate"]
    for name, row in found.items():
        table.add_row(name, f"{row['rate']:.0f}", f"{row['tokens']:.1f}", f"{row['rate'] / peer:.2f}x")
    Console().print(table)
    ratio = found["scalerl"]["rate"] / peer
    print(f"{ratio:.2f} times TRL (target {TARGET}), {torch.get_num_threads()} threads")
    return 0 if ratio >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
