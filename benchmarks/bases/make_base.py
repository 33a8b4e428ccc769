"""Make the base models of the gpu-* studies and of first-curves: Llamas of 2M to 135M parameters.

    python benchmarks/bases/make_base.py --size 10m --out runs/bases/10m        minutes on a large GPU
    python benchmarks/bases/make_base.py --size 10m --recipe arithmetic-10m --steps 2500 --out runs/base-10m
    python benchmarks/bases/make_base.py --size 2m --vocabulary 32768 --out runs/bases/2m-32k

A size sets width, layers, heads, steps, tokens per step, learning rate and precision. Like the embedded tiny base, the
models imitate demonstrations that mix careful work, slips and guesses, so they can reason and mostly do not. The file
made_by.json in the folder has the loss curve; it is flat where the last fifth of the steps gained less than 2 %.

A base that has not learned to use its context by a fifth of its steps (its loss is that of letter frequencies) is
stopped and started again with a third of the learning rate, twice at most.

The 2m and 10m bases of docs/results/principles.md came from an earlier version of this script, in 400 and 450 s of an
H200 that made all four sizes at once: pass rates 0.28 and 0.34. Its 40m and 135m did not learn (held-out loss 1.8
against 0.16), because it trained these two within one torch.autocast: that rounds each weight once and keeps the copy
until the context ends, so their layers stayed as they began (docs/log.md). This version's 40m and 135m reached a
held-out loss of 0.147, in 240 and 300 s of an H200 beside two runs.
"""

import argparse
import math
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from scalerl.recipe.load import changed_recipe, load_recipe
from scalerl.recipe.recipe import Recipe
from scalerl.training.models.tiny import build_tokenizer
from scalerl.training.run.observer import RunObserver
from scalerl.training.run.sft.make import SftProgress, SftResult, sft
from scalerl.training.tasks.build import build_tasks
from scalerl.training.types import derive_seed

VOCABULARY = 64
CONTEXT = 192
STUCK_LOSS = 1.5
"""A model of a task's sums with a held-out loss above this knows little more than how frequent each letter is."""
NUM_ATTEMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Shape and training of one base. Heads are 64 wide."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    """Fewer than `heads` where keys and values are shared, so that thousands of slots of several runs fit at once."""
    steps: int
    lr: float
    batch_tokens: int = 32_000
    warmup_frac: float = 0.04
    dtype: torch.dtype = torch.bfloat16
    """Precision of the body on a GPU; master weights are float32. TF32 products fail the check of packed sequences."""


SIZES = {
    "2m": Size(hidden=192, intermediate=512, layers=4, heads=3, kv_heads=3, steps=5000, lr=2e-3),
    "4m": Size(hidden=256, intermediate=704, layers=6, heads=4, kv_heads=2, steps=4000, lr=1.5e-3),
    "10m": Size(hidden=384, intermediate=1024, layers=6, heads=6, kv_heads=2, steps=4000, lr=1e-3),
    # The learning rate goes with 1 / width. Deeper models get a longer warm-up, and more and smaller steps.
    "20m": Size(
        hidden=512,
        intermediate=1408,
        layers=7,
        heads=8,
        kv_heads=2,
        steps=3600,
        lr=8e-4,
        batch_tokens=16_000,
        warmup_frac=0.08,
    ),
    "40m": Size(
        hidden=640,
        intermediate=1728,
        layers=9,
        heads=10,
        kv_heads=5,
        steps=3600,
        lr=6e-4,
        batch_tokens=16_000,
        warmup_frac=0.08,
    ),
    "135m": Size(
        hidden=960,
        intermediate=2560,
        layers=14,
        heads=15,
        kv_heads=5,
        steps=2600,
        lr=4e-4,
        batch_tokens=16_000,
        warmup_frac=0.08,
    ),
}


def fresh_model(task: Any, folder: Path, size: Size, *, seed: int, vocabulary: int = VOCABULARY) -> None:
    """Write untrained weights and a tokenizer of the task's characters."""
    texts = [
        text
        for demonstration in task.demonstrations(2000, seed)
        for text in (demonstration.problem.prompt, *demonstration.earlier, demonstration.completion)
    ]
    # "!" answers a question that a tool cannot read, which no demonstration has.
    tokenizer: Any = build_tokenizer(iter([*texts, "!"]), task.answer)
    torch.manual_seed(derive_seed("base", size.hidden, seed))
    config = LlamaConfig(
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        vocab_size=vocabulary,
        max_position_embeddings=CONTEXT,
        # The usual 0.02 suits widths of thousands.
        initializer_range=0.05 * math.sqrt(384 / size.hidden),
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class Watcher(RunObserver):
    """Prints every point of the loss curve, and stops a model that has learned letter frequencies alone."""

    def __init__(self, num_steps: int, stuck_loss: float) -> None:
        self._num_steps, self._stuck_loss = num_steps, stuck_loss
        self.stuck = False

    def measured(self, progress: SftProgress) -> None:
        print(
            f"step {progress.step:6d}  {progress.elapsed_s:6.1f} s  loss {progress.train_loss or math.nan:.4f}"
            f"  held out {progress.heldout_loss:.4f}",
            flush=True,
        )
        # A loss that is not a number is stuck, too.
        if progress.step >= 0.2 * self._num_steps and not progress.heldout_loss < self._stuck_loss:
            self.stuck = True

    def stopping(self) -> bool:
        return self.stuck


def train(recipe: Recipe, fresh: Path, arguments: argparse.Namespace, size: Size, lr: float) -> SftResult | None:
    """Train one attempt; None if it is stuck."""
    steps = arguments.steps or size.steps
    settings = {
        "model.dtype": str(size.dtype).removeprefix("torch.") if torch.cuda.is_available() else "float32",
        "sft.model": str(fresh),
        "sft.steps": steps,
        "sft.lr": lr,
        "sft.batch_tokens": arguments.batch_tokens or size.batch_tokens,
        "sft.warmup_frac": size.warmup_frac,
        "sft.num_demonstrations": arguments.demonstrations,
        "sft.num_heldout": min(4000, arguments.demonstrations // 10),
    }
    record = {key: str(value) if key == "dtype" else value for key, value in asdict(size).items()}
    return sft(
        changed_recipe(recipe, [f"{key}={value}" for key, value in settings.items()]),
        arguments.out,
        record={
            "made_by": "benchmarks/bases/make_base.py",
            "size": {"name": arguments.size, **record},
            "vocabulary": arguments.vocabulary,
            "recipe": arguments.recipe,
            "set": arguments.set,
        },
        observer=Watcher(steps, arguments.stuck_loss),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--size", choices=SIZES, default="10m")
    parser.add_argument("--recipe", default="long-arithmetic", help="whose task is taught")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting of the recipe"
    )
    parser.add_argument("--steps", type=int, help="instead of the size's own")
    parser.add_argument("--lr", type=float, help="instead of the size's own")
    parser.add_argument("--batch-tokens", type=int, help="tokens per step, instead of the size's own")
    parser.add_argument("--demonstrations", type=int, default=500_000)
    parser.add_argument(
        "--vocabulary", type=int, default=VOCABULARY, help="rows of the head; those beyond the letters stay unused"
    )
    parser.add_argument(
        "--stuck-loss",
        type=float,
        default=STUCK_LOSS,
        help="held-out loss above which a fifth of the steps was in vain",
    )
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), help="of the body on a GPU")
    arguments = parser.parse_args()
    size = SIZES[arguments.size]
    if arguments.dtype:
        size = replace(size, dtype=getattr(torch, arguments.dtype))
    # Imitation does not need FP32 products; the recipe's RL sets its own precision.
    torch.set_float32_matmul_precision("high")
    recipe = load_recipe(arguments.recipe, arguments.set)
    (task,) = build_tasks(recipe.task, recipe.tasks, recipe.evaluation).values()
    lr, result = arguments.lr or size.lr, None
    with tempfile.TemporaryDirectory() as fresh:
        fresh_model(task, Path(fresh), size, seed=recipe.seed, vocabulary=arguments.vocabulary)
        for attempt in range(NUM_ATTEMPTS):
            result = train(recipe, Path(fresh), arguments, size, lr)
            if result is not None:
                break
            shutil.rmtree(arguments.out.with_name(f"{arguments.out.name}.checkpoints"))
            print(f"STUCK: attempt {attempt + 1} with a learning rate of {lr:.2g} knows letters alone", flush=True)
            lr /= 3
    if result is None:
        print(f"{arguments.out} was not made: no learning rate worked", file=sys.stderr)
        return 1
    print(f"{result.num_parameters:,} parameters; {result.gain_last_fifth:.1%} gained in the last fifth of the steps")
    return 0


if __name__ == "__main__":
    sys.exit(main())
