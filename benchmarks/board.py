"""The board on 30 runs of 2,000 rows: first paint, delay of an update, and memory, measured in a real browser.

    python benchmarks/board.py [--runs 30] [--rows 2000] [--updates 10]

First paint is from the request of the page until the curves of all runs are drawn; it is also measured for the page of
one run, and from the start of the server. An update is from writing a row until the page has drawn it. Memory is that
of the server's process without its workers. These are wall times, for an idle machine; CPU times are of the server.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from boards import GrowingRun, ServedBoard

LIMITS = {"first paint, s": 0.6, "first paint of one run, s": 0.6, "update, s": 0.2, "memory, MB": 300.0}
EVAL_EVERY = 20


def write_runs(folder: Path, num_runs: int, num_rows: int) -> list[GrowingRun]:
    """Write runs with a row of metrics per step and an evaluation every 20 steps."""
    runs = []
    for number in range(num_runs):
        run = GrowingRun(folder / f"run-{number:02}", budget_steps=2 * num_rows, ceiling=0.5 + 0.01 * number)
        metrics, evals = [], []
        run.append = lambda name, row, m=metrics, e=evals: (m if name == "metrics.jsonl" else e).append(json.dumps(row))
        for _ in range(num_rows // EVAL_EVERY):
            run.train(EVAL_EVERY)
            run.evaluate()
        del run.append
        (run.folder / "metrics.jsonl").write_text("\n".join(metrics) + "\n")
        with (run.folder / "evals.jsonl").open("a") as file:
            file.write("\n".join(evals) + "\n")
        runs.append(run)
    return runs


def memory_mb(pid: int) -> float:
    """Resident memory of one process, in MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024


def cpu_s(pid: int) -> float:
    """CPU time of one process so far: unlike wall time, it does not depend on what else the machine does."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def paint_s(tab: Any, link: str, ready: str) -> float:
    began = time.perf_counter()
    tab.goto(link)
    tab.wait_for_selector(ready, state="attached", timeout=120_000)
    return time.perf_counter() - began


def update_s(tab: Any, run: GrowingRun) -> float:
    """Seconds from writing an evaluation until the page counts it: of very many, means are drawn."""
    count = "parseInt(document.querySelector('#tiles .what').textContent.match(/\\d+/)[0])"
    before = tab.evaluate(count)
    run.train(1)
    began = time.perf_counter()
    run.evaluate()
    while tab.evaluate(count) <= before:
        time.sleep(0.005)
        if time.perf_counter() - began > 30:
            break
    return time.perf_counter() - began


def measure(folder: Path, num_runs: int, num_rows: int, num_updates: int) -> dict[str, float]:
    from playwright.sync_api import sync_playwright

    runs = write_runs(folder, num_runs, num_rows)
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    figures: dict[str, float] = {}
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        tab = browser.new_page()
        tab.goto("about:blank")
        began = time.perf_counter()
        with ServedBoard(folder) as board:
            all_drawn = f"#together svg circle >> nth={10 * num_runs}"
            paint_s(tab, board.link, all_drawn)
            figures["first paint from the start of the server, s"] = time.perf_counter() - began
            assert board.process is not None
            figures["CPU of the server until then, s"] = cpu_s(board.process.pid)
            figures["first paint, s"] = paint_s(tab, f"{board.link}&again", all_drawn)
            key = board.runs()[runs[0].folder.name]
            figures["first paint of one run, s"] = paint_s(tab, f"{board.link}&one#run/{key}", "#curves svg circle")
            time.sleep(2)
            before = cpu_s(board.process.pid)
            updates = [update_s(tab, runs[0]) for _ in range(num_updates)]
            figures["CPU of the server per update, s"] = (cpu_s(board.process.pid) - before) / num_updates
            figures["update, s"] = statistics.median(updates)
            figures["slowest update, s"] = max(updates)
            figures["memory, MB"] = memory_mb(board.process.pid)
        browser.close()
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--updates", type=int, default=10)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), given.runs, given.rows, given.updates)
    print(f"{given.runs} runs of {given.rows:,} rows")
    missed = 0
    for name, value in figures.items():
        limit = LIMITS.get(name)
        missed += limit is not None and value > limit
        print(f"{name:48} {value:8.2f}" + ("" if limit is None else f"   limit {limit:g}"))
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
