"""Sampling, learning and the whole loop on a GPU, each against what the device could do.

    python benchmarks/gpu.py                                      every shape and part: a JSON line each, then a table
    python benchmarks/gpu.py --shapes 10m,135m --parts sample,mixed,generate --seconds 60
    python benchmarks/gpu.py --weights FOLDER                     135m with SmolLM2's own weights instead of random ones
    python benchmarks/gpu.py --shapes tiny --quick                sizes that only show that it runs, on a CPU too

    sample      decoding at full slots          mixed       requests of mixed lengths, our engine
    learn       the learner's step alone        generate, continuous, static     the same through transformers
    loop        PipelineRL-8, both together, against its two parts alone (gpu_loop.py)

Ceilings are measured first: bytes read, bytes copied and bf16 FLOPs per second; gpu_limits.py says what a decode step
takes at least. MFU = 6 x matrix parameters, head included, x tokens / rate, for packed sequences of one length, all
trained, with a bf16 body and an FP32 head; recomputation is not credited, attention only in mfu_attention. Idle is the
share of the loop's time in which no kernel runs. Mixed lengths are log-uniform, with eight completions per prompt; only
tokens within a request's own length count. 1.5b-16k has the paper's lengths: prompts of 512, 10k to 12k of thinking,
which is interrupted, and answers of 2k; its loop begins in the middle of a run (gpu_long.py).

Each shape runs in its own process. A part that fails, or that prints nothing for too long and is killed with its
process, is reported as failed, and the following parts are still measured.
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

SHAPES = ("tiny", "10m", "135m", "1.5b", "1.5b-16k")
PARTS = ("sample", "learn", "loop", "mixed", "generate", "continuous", "static")
PEERS = ("generate", "continuous", "static")
NO_STATIC = ("tiny", "1.5b")  # compiled for a minute, and no ratio is asked for
LONG_PARTS = ("sample", "learn", "loop")
START_S = 180.0  # for imports, a model and what is compiled, beyond the seconds of a part
DEVICE_LOST = 3  # exit status: a part that failed has spoiled the device for its process

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
        known = LONG_PARTS if shape.endswith("16k") else PARTS
        parts = arguments.parts or [part for part in known if part != "static" or shape not in NO_STATIC]
        measure_shape(shape, parts, arguments, until, write)
    print(table(rows))
    return int(any("failed" in row and row["part"] not in PEERS for row in rows))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    on_gpu = gpu_visible()
    parser.add_argument("--shapes", type=names(SHAPES), default=SHAPES if on_gpu else SHAPES[:1], metavar="A,B")
    parser.add_argument("--parts", type=names(PARTS), metavar="A,B")
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


def measure_shape(
    shape: str, parts: Sequence[str], arguments: argparse.Namespace, until: float, write: Callable[[Row], None]
) -> None:
    """Measure all parts of a shape, in as few processes as failures allow."""
    left = list(parts)
    while left:
        options = {
            "shape": shape,
            "parts": left,
            "seconds": arguments.seconds,
            "device": arguments.device,
            "weights": arguments.weights if shape == "135m" else None,
            "quick": arguments.quick,
        }
        command = [sys.executable, str(Path(__file__).with_name("gpu_parts.py")), json.dumps(options)]
        # A part warms up and measures; the loop does so for its parts, for itself and with half of its batch.
        for row in rows_of(command, left, silent_s=START_S + 8 * arguments.seconds, until=until):
            write({"shape": shape, **row})
            left = left[1:]


def rows_of(command: Sequence[str], parts: Sequence[str], *, silent_s: float, until: float) -> Iterator[Row]:
    """Yield a row per part from one process; if it dies or is killed, the last row has the reason."""
    if time.monotonic() >= until:
        yield from ({"part": part, "failed": "not measured: the time of --total was up"} for part in parts)
        return
    # Nothing is to be fetched: a peer that looks for kernels on a hub would wait for the network.
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    num_rows = 0
    try:
        for line in lines_of(process, silent_s=silent_s, until=until):
            if not line.startswith("{"):
                print(line, end="", flush=True)
                continue
            num_rows += 1
            yield json.loads(line)
            if num_rows == len(parts):
                return
        status = process.wait()
        if status != DEVICE_LOST or not num_rows:
            yield {"part": parts[num_rows], "failed": f"its process ended with exit status {status}"}
    except TimeoutError as error:
        yield {"part": parts[num_rows], "failed": f"its process was killed: {error}"}
    finally:
        # A peer's thread that does not end would keep it alive.
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
    """Return one line per shape, with ratios to transformers; a dash means not measured."""
    by_shape: dict[str, dict[str, Row]] = {}
    for row in rows:
        by_shape.setdefault(row["shape"], {})[row["part"]] = row
    lines = ["{:<9}{:>11}{:>10}{:>10}{:>7}{:>11}{:>9}{:>10}{:>12}{:>7}{:>10}{:>11}".format(*HEADER)]
    lines[0] += "".join(f"{peer:>12}" for peer in PEERS)
    for shape, parts in by_shape.items():
        ours = parts.get("mixed", {}).get("mixed_tokens_per_s")
        ratios = [ratio(ours, parts.get(peer, {}).get("tokens_per_s")) for peer in PEERS]
        peak = max(
            (row["peak_gib"] for row in parts.values() if "peak_gib" in row and row["part"] not in PEERS), default=None
        )
        lines.append(
            f"{shape:<9}"
            f"{shown(parts, 'sample', 'tokens_per_s', ',.0f'):>11}"
            f"{shown(parts, 'sample', 'of_limit', '.0%'):>10}"
            f"{shown(parts, 'sample', 'of_bound', '.0%'):>10}"
            f"{shown(parts, 'learn', 'mfu', '.1%'):>7}"
            f"{shown(parts, 'learn', 'mfu_attention', '.1%'):>11}"
            f"{shown(parts, 'loop', 'steps_per_s', '.2f'):>9}"
            f"{shown(parts, 'loop', 'of_parts', '.2f'):>10}"
            f"{shown(parts, 'loop', 'alone_over_loop', '.2f'):>12}"
            f"{shown(parts, 'loop', 'idle', '.0%'):>7}"
            f"{'-' if peak is None else format(peak, '.1f'):>10}"
            f"{shown(parts, 'mixed', 'mixed_tokens_per_s', ',.0f'):>11}" + "".join(f"{text:>12}" for text in ratios)
        )
    return "\n".join(lines)


HEADER = (
    *("shape", "tokens/s", "of limit", "of bound", "MFU", "with att.", "steps/s", "of parts", "alone/loop", "idle"),
    *("peak GiB", "mixed"),
)


def shown(parts: dict[str, Row], part: str, figure: str, form: str) -> str:
    value = parts.get(part, {}).get(figure)
    return "-" if value is None else format(value, form)


def ratio(ours: float | None, theirs: float | None) -> str:
    return "-" if not ours or not theirs else f"x{ours / theirs:.2f}"


if __name__ == "__main__":
    sys.exit(main())
