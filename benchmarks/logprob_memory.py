"""Memory and speed of training/rl/logprobs.py against the full tokens x vocabulary computation, forward and backward.

    python benchmarks/logprob_memory.py            one table: peak memory flat in tokens; speed at a size where both fit
    python benchmarks/logprob_memory.py --sweep    the same speed for several chunks (how the device's own was chosen)

Peak is what forward and backward add to the inputs (hidden states, head) and includes the head's gradient. Each row is
measured in its own process: on CUDA by the allocator, otherwise by the peak resident set.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

LIMIT = 0.70
"""Least speed relative to the full computation at the same size."""


def sizes(device: str) -> tuple[dict, dict]:
    """Return the sizes for memory and speed: several chunks each; small on a CPU, for a minute on two free cores."""
    if device == "cuda":
        real = {"vocab": 128_256, "width": 4096, "dtype": "bfloat16", "tokens": 16_384, "repeats": 5}
        return real | {"repeats": 1}, real
    return (
        {"vocab": 131_072, "width": 16, "dtype": "bfloat16", "tokens": 16_384, "repeats": 0},
        {"vocab": 8192, "width": 512, "dtype": "bfloat16", "tokens": 4096, "repeats": 3},
    )


def measure(case: dict) -> dict:
    """Return peak bytes and seconds of each method of a case, alternating; runs in a child process."""
    import torch

    from scalerl.training.rl.logprobs import log_probs_and_entropy

    def full(hidden, head_weight, targets, chunk):
        log_probs = torch.log_softmax(torch.nn.functional.linear(hidden.float(), head_weight.float()), dim=-1)
        with torch.no_grad():
            entropy = -(log_probs.exp() * log_probs).sum(dim=-1)
        return log_probs.gather(1, targets[:, None])[:, 0], entropy

    def chunked(hidden, head_weight, targets, chunk):
        return log_probs_and_entropy(hidden, head_weight, targets, chunk=chunk)

    device, dtype = torch.device(case["device"]), getattr(torch, case["dtype"])
    torch.manual_seed(0)
    hidden = torch.randn(case["tokens"], case["width"], device=device, dtype=dtype).requires_grad_()
    head_weight = (torch.randn(case["vocab"], case["width"], device=device, dtype=dtype) * 0.02).requires_grad_()
    targets = torch.randint(0, case["vocab"], (case["tokens"],), device=device)
    weights = torch.rand(case["tokens"], device=device) / case["tokens"]

    def step(method) -> float:
        hidden.grad = head_weight.grad = None
        synchronise(device)
        start = time.perf_counter()
        log_probs, _ = method(hidden, head_weight, targets, case.get("chunk"))
        (weights * log_probs).sum().backward()
        synchronise(device)
        return time.perf_counter() - start

    methods = [{"full": full, "chunked": chunked}[name] for name in case["methods"]]
    before = peak_bytes(device, reset=True)
    first = [step(method) for method in methods]
    peak = peak_bytes(device) - before
    seconds = [[step(method) for method in methods] for _ in range(case["repeats"])] or [first]
    return {"peak": peak, "seconds": [statistics.median(column) for column in zip(*seconds, strict=True)]}


def synchronise(device) -> None:
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize()


def peak_bytes(device, *, reset: bool = False) -> int:
    """Return the peak so far. It cannot be reset for a process, but inputs are far smaller than what is measured."""
    if device.type == "cuda":
        import torch

        if reset:
            torch.cuda.reset_peak_memory_stats()
        return torch.cuda.max_memory_allocated()
    import resource

    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def in_child(case: dict) -> dict:
    command = [sys.executable, str(Path(__file__).resolve()), "--case", json.dumps(case)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def row(name: str, case: dict, peak: float | None, seconds: float, ratio: float | None) -> None:
    matrix = case["tokens"] * case["vocab"] * 4 / 2**20
    memory = "-" if peak is None else f"{peak / 2**20:,.0f}"
    speed = "-" if ratio is None else f"{ratio:.0%}"
    size = f"{case['tokens']:>8}{case['vocab']:>9}{case['width']:>7}{matrix:>12,.0f}"
    print(f"{name:<16}{size}{memory:>12}{seconds:>10.2f}{speed:>10}", flush=True)


def table(device: str) -> bool:
    memory, speed = ({**size, "device": device} for size in sizes(device))
    header = ("method", "tokens", "vocab", "width", "matrix MiB", "peak MiB", "seconds", "speed")
    print("{:<16}{:>8}{:>9}{:>7}{:>12}{:>12}{:>10}{:>10}".format(*header))
    peaks = []
    for part in (8, 4, 2, 1) if device == "cuda" else (8, 1):
        case = memory | {"tokens": memory["tokens"] // part, "methods": ["chunked"]}
        result = in_child(case)
        peaks.append(result["peak"])
        row("chunked", case, result["peak"], result["seconds"][0], None)
    case = memory | {"tokens": memory["tokens"] // (1 if device == "cuda" else 8), "methods": ["full"]}
    result = in_child(case)
    row("full", case, result["peak"], result["seconds"][0], None)

    case = speed | {"methods": ["full", "chunked"]}
    full, chunked = in_child(case)["seconds"]
    row("full", case, None, full, 1.0)
    row("chunked", case, None, chunked, full / chunked)
    matrix = memory["tokens"] * memory["vocab"] * 4
    print(
        f"peak at 8x the tokens: {peaks[-1] / peaks[0]:.2f}x, {peaks[-1] / matrix:.0%} of one matrix;"
        f" speed {full / chunked:.0%} of full (least: {LIMIT:.0%})"
    )
    return peaks[-1] < min(1.25 * peaks[0], matrix) and full / chunked >= LIMIT


def sweep(device: str) -> None:
    _, speed = sizes(device)
    for chunk in (64, 128, 256, 512, 1024, 2048, 4096):
        case = speed | {"device": device, "chunk": chunk, "methods": ["full", "chunked"]}
        full, chunked = in_child(case)["seconds"]
        row(f"chunk {chunk}", case, None, chunked, full / chunked)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", action="store_true", help="speed for several chunks")
    parser.add_argument("--device", help="cpu or cuda; the GPU where there is one")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(json.loads(arguments.case))))
        return 0
    find = "import torch; print('cuda' if torch.cuda.is_available() else 'cpu')"
    device = arguments.device or subprocess.check_output([sys.executable, "-c", find], text=True).strip()
    if arguments.sweep:
        sweep(device)
        return 0
    return 0 if table(device) else 1


if __name__ == "__main__":
    sys.exit(main())
