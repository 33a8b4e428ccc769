"""Trained completions per second of the whole loop, against TRL's GRPOTrainer in the same run.

    pip install trl; python benchmarks/step_speed.py [--steps 16] [--threads 2]

The same for both: the embedded 0.86M-parameter Llama, the same sums in the same order, 128 completions per
step (16 problems x 8) of up to 48 tokens at temperature 1, CISPO with an absolute cap of 5, AdamW, FP32, CPU threads.
Nothing is evaluated or saved, and the learning rate is too small to change lengths. Sampled tokens per completion, stop
token included, must agree within 5 % for the comparison to be valid; different sums or only a few steps would make them
differ by more. Our loop is timed once its pipeline is full, when as much is sampled as is trained.
"""

import argparse
import importlib
import importlib.util
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from scalerl.recipe.load import load_recipe
from scalerl.training.graders.rules import exact
from scalerl.training.run.run import TrainingRun
from scalerl.training.types import Problem

TARGET = 2.5
TOLERANCE = 0.05
"""Largest allowed difference of sampled tokens per completion, relative to TRL's."""
WARM_UP = 12
"""Steps before the first timed one: more than max_lag, so that the pipeline is full and steady."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The totals of the timed steps of one loop."""

    seconds: float
    problems: tuple[Problem, ...]
    lengths: tuple[int, ...]
    """Sampled tokens per trained completion, the stop token included."""

    @property
    def rate(self) -> float:
        return len(self.lengths) / self.seconds

    @property
    def tokens(self) -> float:
        return sum(self.lengths) / len(self.lengths)


def ours(steps: int) -> Measured:
    """Run steps of the real loop."""
    with tempfile.TemporaryDirectory() as folder:
        run = TrainingRun(load_recipe("tiny-cpu", [*SETTINGS, f"budget.steps={WARM_UP + steps}"]), Path(folder) / "run")
        times, groups = [], []
        for done in run.pipeline.steps():
            times.append(time.perf_counter())
            groups.append(done.batch.groups)
            if len(times) == WARM_UP + steps:
                break
    measured = [group for batch in groups[WARM_UP:] for group in batch]
    return Measured(
        seconds=times[-1] - times[WARM_UP - 1],
        problems=tuple(group.problem for group in measured),
        lengths=tuple(len(completion) for group in measured for completion in group.completions),
    )


def trl(problems: Sequence[Problem]) -> Measured:
    """Train on the same problems with TRL: one optimiser step per generation, the whole batch at once."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

    # By name: TRL is needed for this benchmark alone, and is no dependency of ours.
    datasets: Any = importlib.import_module("datasets")
    peer: Any = importlib.import_module("trl")

    path = str(files("scalerl") / "assets" / "tiny-base")
    tokenizer = AutoTokenizer.from_pretrained(path)
    # The first step warms it up, on the problems of the second.
    rows = [{"prompt": problem.prompt, "answer": problem.answer} for problem in (*problems[:GROUPS], *problems)]
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
                shuffle_dataset=False,
                max_completion_length=LONGEST,
                loss_type="cispo",
                epsilon_high=5.0,
                scale_rewards="batch",
                beta=0.0,
                temperature=1.0,
                top_k=0,
                learning_rate=1e-6,
                max_steps=len(rows) // GROUPS,
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
    return Measured(
        seconds=times.ends[-1] - times.ends[0],
        problems=tuple(problems),
        lengths=tuple(lengths[GROUPS * PER_GROUP :]),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--threads", type=int, help="of torch; all cores unless told")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore")
    if importlib.util.find_spec("trl") is None:
        print("TRL is not installed, so there is nothing to compare with: pip install trl")
        return 0
    # In turn and twice, so that a busy machine slows both; the better of two.
    rounds = []
    for _ in range(2):
        loop = ours(arguments.steps)
        rounds.append({"scalerl": loop, "TRL GRPOTrainer": trl(loop.problems)})
    best = {name: max((results[name] for results in rounds), key=lambda row: row.rate) for name in rounds[0]}
    peer = best["TRL GRPOTrainer"]
    table = Table(box=None)
    for column in ("loop", "trained completions/s", "tokens a completion", "ratio"):
        table.add_column(column, justify="right")
    for name, row in best.items():
        table.add_row(name, f"{row.rate:.0f}", f"{row.tokens:.2f}", f"{row.rate / peer.rate:.2f}x")
    Console().print(table)
    ratio, difference = best["scalerl"].rate / peer.rate, best["scalerl"].tokens / peer.tokens - 1
    print(f"{ratio:.2f} times TRL (least: {TARGET}), {torch.get_num_threads()} threads")
    print(f"sampled tokens a completion differ by {difference:+.1%} (most: {TOLERANCE:.0%})")
    return 0 if ratio >= TARGET and abs(difference) <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
