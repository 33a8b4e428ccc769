"""Sampling, learning and the whole loop on a GPU: our engine against vLLM, and the device's limits.

    python benchmarks/gpu.py                                      every shape and part: a JSON line each, then a table
    python benchmarks/gpu.py --shapes 3b,8b --parts torch,vllm --seconds 60
    python benchmarks/gpu.py --weights FOLDER                     135m with SmolLM2's own weights instead of random ones
    python benchmarks/gpu.py --shapes tiny --quick                sizes that only show that it runs, on a CPU too

    torch, vllm       an engine as a run builds it: decoding at full slots, mixed lengths, a push, memory
    native            vLLM alone, with its own sampling, with and without log-probs
    learn             the learner's step; 8B trains adapters (LoRA)
    loop, loop_vllm   PipelineRL-8 with the embedded engine, and with vLLM beside the learner on one device; at its end
                      the process with vLLM is killed
    gaps              the loop against its parts in the same process, and where the time of a step goes (gaps.py)

Ceilings are measured first: bytes read and bf16 FLOPs per second. `of limit` is the least time of a decode step, by
these, over its measured time. MFU = 6 x matrix parameters (4 with adapters), head included, x tokens / rate; with
attention by training/models/shape.py; recomputation is not credited. Memory is the most that was allocated, over what
`scalerl train --check` says. Mixed lengths are log-uniform, with eight completions per prompt; `steady` is their rate
while all slots are in use.

Each part runs in its own process. One that fails, or prints nothing for too long and is killed, is reported as failed.
"""

import argparse
import datetime
import json
import os
import platform
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from scalerl.cli.recipe import gpu_visible

SHAPES = ("tiny", "10m", "135m", "1.5b", "3b", "8b", "3b-16k", "8b-16k")
PARTS = ("torch", "vllm", "native", "learn", "loop", "loop_vllm", "gaps")
START_S = 300.0  # for imports, a model and what is compiled, beyond the seconds of a part
COLUMNS = (
    ("torch", "tokens_per_s", "full slots", ",.0f"),
    ("torch", "of_limit", "of limit", ".0%"),
    ("torch", "steady_tokens_per_s", "steady", ",.0f"),
    ("torch", "mixed_tokens_per_s", "mixed", ",.0f"),
    ("torch", "push_s", "push s", ".3f"),
    ("torch", "used_gib", "GiB", ".0f"),
    ("torch", "of_estimate", "of check", ".2f"),
    ("vllm", "tokens_per_s", "vLLM full", ",.0f"),
    ("vllm", "steady_tokens_per_s", "steady", ",.0f"),
    ("vllm", "mixed_tokens_per_s", "mixed", ",.0f"),
    ("vllm", "push_s", "push s", ".3f"),
    ("vllm", "used_gib", "GiB", ".0f"),
    ("native", "native_tokens_per_s", "vLLM alone", ",.0f"),
    ("learn", "learner_tokens_per_s", "learn", ",.0f"),
    ("learn", "mfu", "MFU", ".1%"),
    ("learn", "mfu_attention", "with att.", ".1%"),
    ("learn", "of_estimate", "of check", ".2f"),
    ("loop", "steps_per_s", "steps/s", ".2f"),
    ("loop", "loop_tokens_per_s", "tokens/s", ",.0f"),
    ("loop", "of_estimate", "of check", ".2f"),
    ("loop_vllm", "steps_per_s", "vLLM loop", ".2f"),
    ("loop_vllm", "loop_tokens_per_s", "tokens/s", ",.0f"),
    ("loop_vllm", "kl", "KL", ".1e"),
    ("loop_vllm", "grown_gib", "grown GiB", ".2f"),
    ("loop_vllm", "recovery_s", "recovery s", ".0f"),
    ("gaps", "engine_tokens_per_s", "engine", ",.0f"),
    ("gaps", "learner_tokens_per_s", "learner", ",.0f"),
    ("gaps", "steps_per_s", "steps/s", ".2f"),
    ("gaps", "of_parts", "of parts", ".2f"),
    ("gaps", "step_ms", "step ms", ".1f"),
    ("gaps", "engine_ms", "engine ms", ".1f"),
    ("gaps", "learner_ms", "learner ms", ".1f"),
    ("gaps", "push_ms", "push ms", ".1f"),
    ("gaps", "idle_ms", "idle ms", ".1f"),
    ("gaps", "idle", "idle", ".0%"),
    ("gaps", "wait_ms", "host waits", ".1f"),
    ("gaps", "host_ms", "host ms", ".1f"),
    ("gaps", "host_submit_ms", "submit", ".1f"),
    ("gaps", "host_sample_ms", "sample", ".1f"),
    ("gaps", "host_grade_ms", "grade", ".1f"),
    ("gaps", "host_learn_ms", "learn", ".1f"),
    ("gaps", "host_push_ms", "push", ".1f"),
    ("gaps", "host_rest_ms", "rest", ".1f"),
)

Row = dict[str, Any]


def main() -> int:
    arguments = parse()
    until = time.monotonic() + arguments.total
    rows: list[Row] = []

    def write(row: Row) -> None:
        line = json.dumps({"date": datetime.date.today().isoformat(), "python": platform.python_version(), **row})
        print(line, flush=True)
        if arguments.json:
            with open(arguments.json, "a", encoding="utf-8") as file:
                file.write(line + "\n")
        rows.append(row)

    for shape in arguments.shapes:
        for part in arguments.parts:
            write(measure_part(shape, part, arguments, until))
    print(table(rows))
    return int(any("failed" in row for row in rows))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    on_gpu = gpu_visible()
    parser.add_argument("--shapes", type=names(SHAPES), default=SHAPES if on_gpu else SHAPES[:1], metavar="A,B")
    parser.add_argument("--parts", type=names(PARTS), default=PARTS, metavar="A,B")
    parser.add_argument("--seconds", type=float, default=15.0, help="a part measures for no longer, where it can tell")
    parser.add_argument("--total", type=float, default=3600.0, help="seconds after which nothing more is measured")
    parser.add_argument("--device", default="", help="cpu or cuda; the GPU where there is one")
    parser.add_argument("--weights", metavar="FOLDER", help="SmolLM2-135M's weights; random ones unless given")
    small = argparse.BooleanOptionalAction
    parser.add_argument("--quick", action=small, default=not on_gpu, help="small sizes, to see that it runs")
    parser.add_argument("--json", metavar="FILE", help="add the JSON lines to this file as well")
    return parser.parse_args()


def names(known: Sequence[str]) -> Callable[[str], list[str]]:
    def parsed(text: str) -> list[str]:
        chosen = text.split(",")
        if unknown := [name for name in chosen if name not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
        return chosen

    return parsed


def measure_part(shape: str, part: str, arguments: argparse.Namespace, until: float) -> Row:
    options = {
        "shape": shape,
        "part": part,
        "seconds": arguments.seconds,
        "device": arguments.device,
        "weights": arguments.weights if shape == "135m" else None,
        "quick": arguments.quick,
    }
    command = [sys.executable, str(Path(__file__).with_name("gpu_parts.py")), json.dumps(options)]
    return {"shape": shape, "part": part, **row_of(command, silent_s=START_S + 8 * arguments.seconds, until=until)}


def row_of(command: Sequence[str], *, silent_s: float, until: float) -> Row:
    """Return the row that a process prints; if it dies or is killed, the reason."""
    if time.monotonic() >= until:
        return {"failed": "not measured: the time of --total was up"}
    # Nothing is to be fetched.
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        for line in lines_of(process, silent_s=silent_s, until=until):
            if line.startswith("{"):
                return json.loads(line)
            print(line, end="", flush=True)
        return {"failed": f"its process ended with exit status {process.wait()}"}
    except TimeoutError as error:
        return {"failed": f"its process was killed: {error}"}
    finally:
        # A thread that does not end would keep it alive.
        process.kill()
        process.wait()


def lines_of(process: "subprocess.Popen[str]", *, silent_s: float, until: float) -> Iterator[str]:
    """Yield the output lines of a process; raise TimeoutError if none comes for that long."""
    assert process.stdout is not None
    lines: queue.Queue[str | None] = queue.Queue()

    def read(stream: IO[str]) -> None:
        with stream:
            for line in stream:
                lines.put(line)
        lines.put(None)

    threading.Thread(target=read, args=(process.stdout,), daemon=True).start()
    while True:
        patience_s = min(silent_s, max(until - time.monotonic(), 0.0))
        try:
            line = lines.get(timeout=patience_s)
        except queue.Empty:
            if patience_s < silent_s:
                raise TimeoutError(f"the time of --total was up, {patience_s:.0f} s after its last line") from None
            raise TimeoutError(f"nothing came for {patience_s:.0f} s") from None
        if line is None:
            return
        yield line


def table(rows: Sequence[Row]) -> str:
    """Return one line per shape; a dash means not measured."""
    measured = {(row["shape"], row["part"]): row for row in rows if "failed" not in row}
    columns = [column for column in COLUMNS if any(part == column[0] for _, part in measured)]
    lines = [f"{'shape':<9}" + "".join(f"{title:>12}" for _, _, title, _ in columns)]
    for shape in dict.fromkeys(row["shape"] for row in rows):
        values = [(measured.get((shape, part), {}).get(figure), form) for part, figure, _, form in columns]
        shown = ("-" if value is None else format(value, form) for value, form in values)
        lines.append(f"{shape:<9}" + "".join(f"{text:>12}" for text in shown))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
