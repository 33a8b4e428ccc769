"""The base model of the study first-curves: a Llama of 10M parameters taught the recipe's demonstrations.

    python benchmarks/first_curves/make_base.py --out runs/base-10m        minutes on a large GPU

384 wide, 6 layers, 6 heads, vocabulary 64, of which the task's characters use a third. Like the embedded tiny base it
imitates a mixture of careful work, slips and guesses, so it knows how to reason and mostly does not. Its made_by.json
has the loss curve: it has flattened where the last fifth of the steps gained less than 2 %.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from scalerl.config import load_recipe
from scalerl.config.sft import SftSettings
from scalerl.models.tiny import build_tokenizer
from scalerl.run.parts import build_tasks
from scalerl.run.sft.make import SftProgress, SftStart, SilentObserver, sft
from scalerl.types import derive_seed

RECIPE = "arithmetic-10m"
SIZES: dict[str, Any] = {
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
}
VOCABULARY = 64
CONTEXT = 128


def fresh_model(task: Any, folder: Path, *, seed: int) -> None:
    """Untrained weights and a tokenizer of the task's characters."""
    texts = [
        text
        for demonstration in task.demonstrations(2000, seed)
        for text in (demonstration.problem.prompt, demonstration.completion)
    ]
    tokenizer: Any = build_tokenizer(iter(texts), task.answer)
    torch.manual_seed(derive_seed("10m", seed))
    config = LlamaConfig(
        **SIZES,
        num_key_value_heads=SIZES["num_attention_heads"],
        vocab_size=VOCABULARY,
        max_position_embeddings=CONTEXT,
        # As of the tiny base: the usual 0.02 suits widths of thousands.
        initializer_range=0.05,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class Printer(SilentObserver):
    """Prints every point of the loss curve."""

    def measured(self, progress: SftProgress) -> None:
        print(
            f"step {progress.step:6d}  {progress.elapsed_s:6.1f} s  loss {progress.train_loss:.4f}"
            f"  held out {progress.heldout_loss:.4f}",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--recipe", default=RECIPE, help="whose task is taught")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting of the recipe"
    )
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--batch-tokens", type=int, default=18_000, help="tokens a step")
    parser.add_argument("--demonstrations", type=int, default=500_000)
    parser.add_argument("--lr", type=float, default=1e-3)
    arguments = parser.parse_args()
    # To imitate takes no FP32 products, which a GPU makes at a fraction of its speed; the recipe's RL sets its own.
    torch.set_float32_matmul_precision("high")
    recipe = load_recipe(arguments.recipe, arguments.set)
    (task,) = build_tasks(recipe).values()
    with tempfile.TemporaryDirectory() as fresh:
        fresh_model(task, Path(fresh), seed=recipe.seed)
        settings = SftSettings(
            steps=arguments.steps,
            batch_tokens=arguments.batch_tokens,
            num_demonstrations=arguments.demonstrations + min(4000, arguments.demonstrations // 10),
            lr=arguments.lr,
            evaluate_every=max(1, arguments.steps // 20),
        )
        result = sft(
            task,
            arguments.out,
            settings,
            start=SftStart(model=fresh, seed=recipe.seed),
            record={
                "made_by": "benchmarks/first_curves/make_base.py",
                "recipe": arguments.recipe,
                "set": arguments.set,
            },
            observer=Printer(),
        )
    assert result is not None, "nothing asks it to stop"
    print(f"{result.num_parameters:,} parameters; {result.gain_last_fifth:.1%} gained in the last fifth of the steps")
    return 0


if __name__ == "__main__":
    sys.exit(main())
