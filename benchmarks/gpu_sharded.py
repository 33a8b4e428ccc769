"""The learner over ranks on one GPU: its speed and memory beside the learner in one process, and its losses.

python benchmarks/gpu_sharded.py                    all parts at 1.5B, about 5 minutes on an H200
python benchmarks/gpu_sharded.py --shape 135m
python benchmarks/gpu_sharded.py --quick            on a CPU with a tiny model: shows only that it runs

none       this process, without ranks: steps of a batch, MFU, losses, peak memory
full       one rank in another process, FSDP2 over NCCL (gloo on a CPU): at least 0.95 of that MFU, equal losses
two        two ranks that share the device, over gloo since NCCL refuses that: losses and gradient norms equal
prompts    prompts of 128 and answers of 98 tokens, 8 to a prompt: computed once, and once per completion

of_estimate is the most memory that was allocated over what `scalerl train --check` says, without its reserve.
"""

import argparse
import functools
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gpu_cases import CASES, Subject, make_batch, now, quick
from learner_speed import make_batch as make_prompts

from scalerl.config import Recipe, load_recipe
from scalerl.learner.ranks.driver import RankedLearner
from scalerl.learner.ranks.process import ProcessRank
from scalerl.learner.ranks.rank import RankSpec
from scalerl.run.learners import build_learner, learner_settings
from scalerl.run.memory import ModelSizes, learner_bytes

LEAST_OF_UNSHARDED = 0.95
"""Least MFU of one sharded rank, as a share of the unsharded learner's."""


def recipe_of(case: Any, *settings: str) -> Recipe:
    common = [f"learner.micro_batch_tokens={case.pass_tokens}", "budget.steps=1", "optimizer.warmup_steps=0"]
    return load_recipe("scalerl", [*common, *settings])


def timed(step: Callable[[Any], dict[str, float]], batches: list[Any], device: torch.device) -> dict[str, Any]:
    """Run steps; the first is not timed, since it allocates."""
    rows, seconds = [], []
    for batch in batches:
        start = now(device)
        rows.append(step(batch))
        seconds.append(now(device) - start)
    fastest = min(seconds[1:])
    return {
        "step_s": fastest,
        "flops_per_s": rows[-1]["batch/flops"] / fastest,
        "losses": [row["loss/value"] for row in rows],
        "norms": [row["optim/grad_norm"] for row in rows],
    }


def ranked(folder: Path, recipe: Recipe, num: int, device: torch.device, backend: str) -> RankedLearner:
    """Return a fully sharded learner of `num` processes that all use the same device."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # pyright: ignore[reportPrivateImportUsage]
    gpu = device.type == "cuda"
    spec = RankSpec(
        num_ranks=num,
        address="127.0.0.1",
        port=store.port,
        folder=str(folder),
        sharding="full",
        settings=functools.partial(learner_settings, recipe, gpu=gpu),
        device="cuda" if gpu else "cpu",
        devices=(0,) * num,
        backend=backend,
    )
    return RankedLearner(lambda: [ProcessRank(spec, rank, silent_s=15.0) for rank in range(num)], meeting_place=store)


def estimated_bytes(recipe: Recipe, config: Any, *, ranks: int | None) -> float:
    """Return what --check would say for one device of the learner; None means a learner without ranks."""
    sizes = ModelSizes.from_config(config)

    def parts_of(num: int) -> dict[str, float]:
        changed = {"ranks": num, "sharding": "full" if num > 1 else "none", "gradient_checkpointing": False}
        return learner_bytes(recipe.model_copy(update={"learner": recipe.learner.model_copy(update=changed)}), sizes)

    parts = parts_of(ranks or 1)
    if ranks == 1:
        # A recipe with one rank shards nothing; here it gathers layers like one of several.
        parts["weights"] = parts_of(2)["weights"] + 2 * sizes.params
    return sum(parts.values()) - parts["reserve"]


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    case = quick(CASES["tiny"]) if arguments.quick else CASES[arguments.shape]
    subject = Subject(case, device)
    batches = [
        make_batch(version, subject.vocab, max(case.step_tokens // case.sequence, 4), case.sequence)
        for version in range(arguments.steps)
    ]
    nccl = "nccl" if device.type == "cuda" else "gloo"
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        subject.model.save_pretrained(folder)
        recipe = recipe_of(case)
        learner = build_learner(subject.model, recipe)
        row = timed(learner.step, batches, device)
        config = subject.model.config
        row |= {"part": "none", "mfu": row["flops_per_s"] / subject.ceiling["matmul"], "peak_bytes": peak(device)}
        row["of_estimate"] = row["peak_bytes"] / estimated_bytes(recipe, config, ranks=None)
        rows.append(row)
        print(json.dumps(row), flush=True)
        del learner
        prompts = [] if arguments.no_prompts else prompt_rows(subject, arguments.steps)
        ceiling = subject.ceiling["matmul"]
        del subject
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        for part, num, backend in (("full", 1, nccl), ("two", 2, "gloo")):
            sharded = ranked(Path(folder), recipe, num, device, backend)
            try:
                row = timed(sharded.step, batches, device)
                memory = [facts.peak_bytes for facts in sharded.rank_facts()]
            finally:
                sharded.close()
            row |= {"part": part, "mfu": row["flops_per_s"] / ceiling, "peak_bytes": max(memory)}
            row["of_estimate"] = row["peak_bytes"] / estimated_bytes(recipe, config, ranks=num)
            rows.append(row)
            print(json.dumps(row), flush=True)
        rows += prompts
    return rows


def prompt_rows(subject: Subject, steps: int) -> list[dict[str, Any]]:
    """Return the seconds of a step with prompts computed once, and once per completion."""
    batches = [make_prompts(version, num_groups=32, longest=98, prompt=128) for version in range(steps)]
    if subject.model.config.max_position_embeddings < 256 or subject.vocab < 64:
        return []
    rows = []
    for shares in ("true", "false"):
        learner = build_learner(subject.model, recipe_of(subject.case, f"learner.share_prompts={shares}"))
        rows.append(timed(learner.step, batches, subject.device) | {"part": "prompts", "share_prompts": shares})
        print(json.dumps(rows[-1]), flush=True)
        del learner
        gc.collect()
    return rows


def peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(CASES), default="1.5b")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--no-prompts", action="store_true", help="leave out the part `prompts`")
    parser.add_argument("--quick", action="store_true", help="a tiny model: shows only that it runs")
    arguments = parser.parse_args()
    began = time.perf_counter()
    by_part = {row["part"]: row for row in measure(arguments) if row["part"] != "prompts"}
    none, full, two = by_part["none"], by_part["full"], by_part["two"]
    ratio = full["mfu"] / none["mfu"]

    def differs(row: dict[str, Any], key: str) -> float:
        return max(abs(a - b) for a, b in zip(row[key], none[key], strict=True))

    print(f"full over none: {ratio:.3f} of its MFU (least: {LEAST_OF_UNSHARDED})")
    for name, row in (("full", full), ("two", two)):
        print(f"{name}: losses differ by {differs(row, 'losses'):.2g}, gradient norms by {differs(row, 'norms'):.2g}")
    shares = ", ".join(f"{name} {row['of_estimate']:.3f}" for name, row in by_part.items())
    print(f"peak memory over the estimate of --check: {shares}")
    print(f"{time.perf_counter() - began:.0f} s")
    return 0 if arguments.quick or ratio >= LEAST_OF_UNSHARDED else 1


if __name__ == "__main__":
    sys.exit(main())
