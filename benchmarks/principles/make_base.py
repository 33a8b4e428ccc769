"""Make the base models of the studies gpu-model-size and gpu-loo: Llamas of 2M to 135M parameters.

    python benchmarks/principles/make_base.py --size 10m --out runs/bases/10m        minutes on a large GPU

A size sets width, layers, heads, steps and learning rate; each can be overridden. Like the embedded tiny base, these
models imitate demonstrations that mix careful work, slips and guesses, so they can reason and mostly do not. The file
made_by.json in the folder has the loss curve; it is flat where the last fifth of the steps gained less than 2 %.

Measured on one H200, all four at once: 2m and 10m reach pass rates of 0.28 and 0.34 in 400 and 450 s. 40m and 135m do
not learn at these learning rates (held-out loss 1.8 against 0.16): lower them before use.
"""

import argparse
import contextlib
import dataclasses
import math
import multiprocessing
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from scalerl.config import load_recipe
from scalerl.models.tiny import build_tokenizer
from scalerl.run.parts import build_tasks
from scalerl.run.sft import SftSettings, sft
from scalerl.types import derive_seed

RECIPE = "long-arithmetic"
VOCABULARY = 64
CONTEXT = 128


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
    autocast: bool
    """Whether products are in bf16: worth it once they take longer than their launches."""


SIZES = {
    "2m": Size(hidden=192, intermediate=512, layers=4, heads=3, kv_heads=3, steps=5000, lr=2e-3, autocast=False),
    "10m": Size(hidden=384, intermediate=1024, layers=6, heads=6, kv_heads=6, steps=4000, lr=1e-3, autocast=False),
    "40m": Size(hidden=640, intermediate=1728, layers=9, heads=10, kv_heads=5, steps=2500, lr=7e-4, autocast=True),
    "135m": Size(hidden=960, intermediate=2560, layers=14, heads=15, kv_heads=5, steps=1500, lr=4e-4, autocast=True),
}


def fresh_model(task: Any, folder: Path, shape: argparse.Namespace, *, seed: int) -> None:
    """Untrained weights and a tokenizer of the task's characters."""
    texts = [text for one in task.demonstrations(2000, seed) for text in (one.problem.prompt, one.completion)]
    tokenizer: Any = build_tokenizer(iter(texts), task.answer)
    torch.manual_seed(derive_seed("base", shape.size, seed))
    config = LlamaConfig(
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        vocab_size=VOCABULARY,
        max_position_embeddings=CONTEXT,
        # The usual 0.02 suits widths of thousands.
        initializer_range=0.05 * math.sqrt(384 / shape.hidden),
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


_draw: Any = None


def _drawn(num: int, seed: int) -> list[Any]:
    return _draw(num, seed)


def drawn_by(workers: int, task: Any) -> Any:
    """The task with its demonstrations drawn by several processes, each from a stream of its own."""
    global _draw
    # A forked process has it; it could not be sent to one.
    _draw = task.demonstrations

    def demonstrations(num: int, seed: int) -> list[Any]:
        shares = [num // workers + (place < num % workers) for place in range(workers)]
        asked = [(share, derive_seed("demonstrations", seed, place)) for place, share in enumerate(shares)]
        # Forked before anything is on the GPU.
        with multiprocessing.get_context("fork").Pool(workers) as pool:
            parts = pool.starmap(_drawn, asked)
        return [one for part in parts for one in part]

    return dataclasses.replace(task, demonstrations=demonstrations)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--size", choices=SIZES, default="10m", help="what the next seven are by default")
    for name in ("hidden", "intermediate", "layers", "heads", "kv-heads", "steps"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--lr", type=float)
    parser.add_argument("--autocast", action=argparse.BooleanOptionalAction, help="products in bf16")
    parser.add_argument("--recipe", default=RECIPE, help="whose task is taught")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change the recipe")
    parser.add_argument("--batch-size", type=int, default=512, help="demonstrations a step")
    parser.add_argument("--demonstrations", type=int, default=500_000)
    parser.add_argument("--prompts", type=int, default=100, help="problems on which the base is measured in the end")
    parser.add_argument("--workers", type=int, default=4, help="processes that draw demonstrations")
    given = parser.parse_args()
    for name, value in asdict(SIZES[given.size]).items():
        if getattr(given, name) is None:
            setattr(given, name, value)
    # To imitate takes no FP32 products, which a GPU makes at a fraction of its speed; the recipe's RL sets its own.
    torch.set_float32_matmul_precision("high")
    recipe = load_recipe(given.recipe, [*given.set, f"evaluation.num_prompts={given.prompts}"])
    (task,) = build_tasks(recipe).values()
    if given.workers > 1:
        task = drawn_by(given.workers, task)
    on_gpu = torch.cuda.is_available()
    products = torch.autocast("cuda", torch.bfloat16) if given.autocast and on_gpu else contextlib.nullcontext()
    with tempfile.TemporaryDirectory() as fresh:
        fresh_model(task, Path(fresh), given, seed=recipe.seed)
        settings = SftSettings(
            model=fresh,
            seed=recipe.seed,
            steps=given.steps,
            batch_size=given.batch_size,
            num_demonstrations=given.demonstrations,
            num_heldout=min(4000, given.demonstrations // 10),
            lr=given.lr,
            warmup_steps=min(150, given.steps // 4),
            evaluate_every=max(1, given.steps // 20),
        )
        with products:
            result = sft(
                task,
                given.out,
                settings,
                record={
                    "made_by": "benchmarks/principles/make_base.py",
                    "size": {name: getattr(given, name) for name in ("size", *asdict(SIZES[given.size]))},
                    "recipe": Path(given.recipe).stem,
                    "set": given.set,
                },
                on_drawing=lambda num: print(f"drawing {num:,} demonstrations", flush=True),
                on_progress=lambda point: print(
                    f"step {point.step:6d}  {point.elapsed_s:6.1f} s  loss {point.train_loss:.4f}"
                    f"  held out {point.heldout_loss:.4f}",
                    flush=True,
                ),
            )
    print(f"{result.num_parameters:,} parameters; {result.gain_last_fifth:.1%} gained in the last fifth of the steps")
    return 0


if __name__ == "__main__":
    sys.exit(main())
