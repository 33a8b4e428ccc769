"""A GPU of 24 GB: models trained with settings that save memory, 20 steps each, on any larger GPU with a limit.

    python benchmarks/home_gpu.py                     what own-model picks, then the same models without limit
    python benchmarks/home_gpu.py --limit 48          a GPU of 48 GB
    python benchmarks/home_gpu.py --tiny              sizes that only show that it runs, on a CPU too

Each case is a process of its own, in which torch may allocate no more than the limit. It is the whole loop on one
device: PipelineRL-8 with the torch engine and random weights, 4 problems x 8 completions per step, contexts of 1,024,
lengths log-uniform. Passes and slots are those that training.run.savings picks for the limit. Printed are the most
memory that was allocated and reserved, over what `scalerl train --check` says without its reserve, and seconds per
step. A case that fails is reported with its error; one that runs out of memory is tried once more with fewer slots, and
one that would begin after --total seconds is left out.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

ADAPTERS = {"model.lora.rank": 32}
MODES: dict[str, dict[str, Any]] = {
    "all weights": {},
    "8 bits": {"optimizer.bits": 8},
    "host": {"optimizer.bits": 8, "optimizer.on_host": True},
    "adapters": ADAPTERS,
    "adapters, 4 bits": {**ADAPTERS, "model.lora.bits": 4},
}
LIMITED = [("1.5b", "host"), ("3b", "adapters"), ("8b", "adapters, 4 bits"), ("3b", "adapters, 4 bits")]
UNLIMITED = [("1.5b", "all weights"), ("1.5b", "8 bits"), ("1.5b", "host"), ("8b", "adapters"), ("3b", "adapters")]
GROUPS, CONTEXT, PROMPT = 4, 1024, 128
COLUMNS = ("limit", "shape", "mode", "steps", "step_s", "update_s", "of_estimate", "peak_gb", "reserved_gb", "kl_first")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One line of the table."""

    shape: str
    mode: str
    limit: float | None
    """Gigabytes that torch may allocate."""
    tiny: bool = False
    steps: int = 20
    seconds: float = 150.0
    """Time after which no further step begins."""
    share: float = 1.0
    """Of the limit, for which passes and slots are picked."""


def measure(subject: Subject) -> dict[str, Any]:
    """Return the figures of a case, in this process."""
    import torch
    from gpu_parts import CASES, PER_GROUP, loaded_model, make_pipeline, now, quick, used_gib

    from scalerl.recipe.load import load_recipe
    from scalerl.recipe.recipe import replaced
    from scalerl.training.models.load import put_on_device
    from scalerl.training.models.nf4 import num_weights
    from scalerl.training.run.cluster.generators import make_engine
    from scalerl.training.run.host import frozen_objects, limit_host_threads
    from scalerl.training.run.learners import build_learner
    from scalerl.training.run.memory import Gpus, ModelSizes, memory_of
    from scalerl.training.run.savings import KEYS, choose_savings

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"
    limit_host_threads(device)
    size = torch.cuda.get_device_properties(device).total_memory if on_gpu else 24e9
    room = min(1e9 * subject.limit, size) if subject.limit else size
    if on_gpu and subject.limit:
        torch.cuda.set_per_process_memory_fraction(room / size)
    case = replace(CASES[subject.shape], context=CONTEXT, short_prompt=PROMPT)
    case = quick(case) if subject.tiny else case
    recipe = load_recipe(
        "scalerl",
        [
            f"rollout.context={case.context}",
            f"rollout.max_prompt_tokens={case.short_prompt}",
            f"pipeline.groups_per_batch={GROUPS}",
            f"pipeline.completions_per_group={PER_GROUP}",
            f'length={{name="none", max_length={case.context - case.short_prompt}}}',
            *("filter.drop_truncated=false", "budget.steps=1", "optimizer.warmup_steps=0"),
            *(f"{key}={json.dumps(value)}" for key, value in MODES[subject.mode].items()),
        ],
    )
    sizes = ModelSizes.from_config(case.config)
    choice = choose_savings(recipe, sizes, Gpus(1, subject.share * room), KEYS[-2:])
    if choice is None:
        return {"failed": f"by the estimate it does not fit into {room / 1e9:.3g} GB"}
    # The choice has also decided whether activations are recomputed.
    recipe = replaced(choice.memory.recipe, choice.changes)
    if not on_gpu:
        recipe = replaced(recipe, {"learner.gradient_checkpointing": False})
    model = random_model(case.config, device, narrow=bool(recipe.model.lora.rank))
    put_on_device(model, device, bits=recipe.model.lora.bits)
    # Before the learner, which may move the model to the host.
    loaded = loaded_model(model, case.context)
    learner = build_learner(model, recipe)
    engine = make_engine(loaded, recipe.model, recipe.rollout)
    pipeline = make_pipeline(case, case.config.vocab_size, engine, learner, groups_per_batch=GROUPS)
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    done, times, updates = [], [], UpdateTimes(learner, device)
    with frozen_objects():
        steps, until = pipeline.steps(), time.perf_counter() + subject.seconds
        while len(done) < subject.steps and (len(done) < 2 or time.perf_counter() < until):
            start = now(device)
            done.append(next(steps))
            times.append(now(device) - start)
    metrics = [dict(step.metrics) for step in done]
    estimate = memory_of(recipe, sizes, Gpus(1, room))
    parts = estimate.parts["learner"]
    wanted = sum(value for part, value in parts.items() if part != "reserve")
    peak = torch.cuda.max_memory_allocated(device) if on_gpu else 0
    figures = {
        "weights": num_weights(model),
        "steps": len(done),
        # The first steps compile, record graphs and fill the pipeline.
        "step_s": statistics.median(times[len(times) // 3 :]),
        "update_s": updates.median(),
        "learner_s": statistics.median(row["time/step_s"] for row in metrics) if on_gpu else None,
        "push_s": statistics.median(step.timings.push_s for step in done),
        "tokens_per_step": statistics.mean(row["batch/trained_tokens"] for row in metrics),
        "kl_first": metrics[0]["loss/kl"],
        "peak_gb": peak / 1e9,
        "reserved_gb": torch.cuda.max_memory_reserved(device) / 1e9 if on_gpu else 0.0,
        "device_gb": used_gib(device) * 2**30 / 1e9,
        "estimate_gb": wanted / 1e9,
        "of_estimate": peak / wanted,
        "host_gb": estimate.host / 1e9,
        "slots": recipe.rollout.slots,
        "pass_tokens": recipe.learner.micro_batch_tokens,
        "recomputes": recipe.learner.gradient_checkpointing,
        "parts_gb": {part: round(value / 1e9, 2) for part, value in parts.items()},
        "estimated_s": choice.seconds,
    }
    engine.close()
    return figures


def random_model(config: Any, device: Any, *, narrow: bool) -> Any:
    """Return a model with random weights, in bf16 as files have it where they are frozen."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    with torch.device(device):
        dtype = torch.bfloat16 if narrow else torch.float32
        return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")


class UpdateTimes:
    """Measures the updates of a learner's optimiser, on a GPU by events."""

    def __init__(self, learner: Any, device: Any) -> None:
        import torch

        self._pairs: list[Any] = []
        update, on_gpu = learner.optimizer.update, device.type == "cuda"

        def timed(*arguments: Any, **options: Any) -> None:
            before = torch.cuda.Event(enable_timing=True) if on_gpu else time.perf_counter()
            if on_gpu:
                before.record()  # pyright: ignore[reportAttributeAccessIssue]
            update(*arguments, **options)
            after = torch.cuda.Event(enable_timing=True) if on_gpu else time.perf_counter()
            if on_gpu:
                after.record()  # pyright: ignore[reportAttributeAccessIssue]
            self._pairs.append((before, after))

        learner.optimizer.update = timed

    def median(self) -> float:
        """Return the median of the seconds; read it when the device is done."""
        seconds = [b - a if isinstance(a, float) else a.elapsed_time(b) / 1e3 for a, b in self._pairs]
        return statistics.median(seconds) if seconds else 0.0


def run_case(subject: Subject, timeout_s: float) -> dict[str, Any]:
    """Measure a case in a process of its own."""
    words = [sys.executable, str(Path(__file__).resolve()), "--case", json.dumps(asdict(subject))]
    # Portions of many sizes come and go: free memory should not be in pieces.
    variables = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    start = time.monotonic()
    try:
        result = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        figures: dict[str, Any] = {"failed": f"took more than {timeout_s:.0f} s"}
    else:
        lines = [line for line in result.stdout.splitlines() if line.startswith("{")]
        errors = result.stderr.strip().splitlines() or ["no output"]
        figures = json.loads(lines[-1]) if lines else {"failed": errors[-1], "trace": errors[-12:]}
    named = {key: getattr(subject, key) for key in ("limit", "shape", "mode")}
    return {**named, **figures, "took_s": round(time.monotonic() - start, 1)}


def shown(row: dict[str, Any]) -> str:
    cells = []
    for key in COLUMNS:
        value = row.get(key, "" if key in ("limit", "shape", "mode") else "-")
        cells.append(f"{value:.3g}" if isinstance(value, float) else "no" if value is None else str(value))
    return "| " + " | ".join(cells) + " |" + (f" {row['failed']}" if "failed" in row else "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=float, default=24.0, help="GB that torch may allocate")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=110.0, help="time for the steps of one case")
    parser.add_argument("--total", type=float, default=540.0, help="seconds after which no case begins")
    parser.add_argument("--tiny", action="store_true", help="sizes that only show that it runs")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure(Subject(**json.loads(options.case)))), flush=True)
        return 0
    until, rows = time.monotonic() + options.total, []
    cases = [(options.limit, *each) for each in LIMITED] + [(None, *each) for each in UNLIMITED]
    for limit, shape, mode in cases:
        left = until - time.monotonic()
        if left < 30 and not options.tiny:
            break
        # What has no limit is for comparison: fewer steps tell as much.
        steps, seconds = (options.steps, options.seconds) if limit else (min(options.steps, 8), 40.0)
        subject = Subject(shape=shape, mode=mode, limit=limit, tiny=options.tiny, steps=steps, seconds=seconds)
        rows.append(run_case(subject, max(left, 60.0)))
        print(json.dumps(rows[-1]), flush=True)
        if "OutOfMemory" in rows[-1].get("failed", "") and until - time.monotonic() > 60:
            # How far the estimate is off shows with fewer slots.
            rows.append(run_case(replace(subject, share=0.8), max(until - time.monotonic(), 60.0)))
            print(json.dumps(rows[-1]), flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps(rows, indent=1))
    print("\n| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
    print("\n".join(map(shown, rows)))
    return int(any("failed" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
