"""Mutate one whole log of each format and read it: python log_fuzz.py FOLDER NUM [SEED] prints the faults as JSON."""

import gzip
import json
import random
import signal
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

import tensorboardX
from log_texts import LOGS, rising
from wandb_files import write_wandb

from scalerl.errors import UserError
from scalerl.forecast.logs import Selection, read_log, series_from

MAX_SECONDS = 20


def peak_megabytes() -> float:
    """Return this program's own peak: getrusage would start from that of the process that started it."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return float(line.split()[1]) / 1024


def seeds(folder: Path) -> list[tuple[str, bytes]]:
    """Return (name, content) of one whole log of each format."""
    rewards = rising(20)
    table = "run,seed,step,timestamp,pass_rate\n" + "".join(
        f"{run},{seed},{at},2026-01-01T{at:02}:00:00,{reward}\n"
        for run in ("a", "b")
        for seed in (0, 1)
        for at, reward in enumerate(rewards, start=1)
    )
    found = [(log.name.replace("/", "-"), log.text.encode()) for log in LOGS]
    found += [("a.csv", table.encode()), ("a.csv.gz", gzip.compress(table.encode()))]
    writer = tensorboardX.SummaryWriter(str(folder / "tb"))
    for at, reward in enumerate(rewards):
        writer.add_scalar("val/acc", reward, at)
    writer.close()
    found.append(("events.out.tfevents.1", next((folder / "tb").iterdir()).read_bytes()))
    found.append(("run-a.wandb", write_wandb(folder / "wandb", rewards, table_bytes=100).read_bytes()))
    with sqlite3.connect(folder / "a.db") as database:
        database.execute("CREATE TABLE metrics (id INTEGER PRIMARY KEY, run_name TEXT, step INTEGER, metrics TEXT)")
        for at, reward in enumerate(rewards):
            values = ("r", at, json.dumps({"reward": reward}))
            database.execute("INSERT INTO metrics (run_name, step, metrics) VALUES (?, ?, ?)", values)
    found.append(("a.db", (folder / "a.db").read_bytes()))
    return found


TOKENS = (
    *(b"nan", b"-inf", b"1e999", b"9" * 400, b"{", b"[" * 2000, b"\xff" * 12, b"\0", b"\x1b[31m", b'"', b"\n", b",,,"),
    *(b"\xe2\x80\xae", b"step:7 - ", b"100%|#| 3/9 [", b"%", b": ", b"a" * 3000),
)


def mutated(data: bytes, dice: random.Random) -> bytes:
    content = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 5, 20))):
        at = dice.randrange(len(content) + 1)
        end = min(len(content), at + dice.choice((1, 2, 8, 200)))
        match dice.randrange(6):
            case 0 if at < len(content):
                content[at] ^= 1 << dice.randrange(8)
            case 1:
                del content[at:end]
            case 2:
                content[at:at] = dice.choice(TOKENS)
            case 3:
                content[at:at] = content[at:end] * dice.choice((1, 3, 50))
            case 4:
                content[at:end] = bytes(dice.randrange(256) for _ in range(end - at))
            case _:
                content = content[:at] if dice.random() < 0.2 and at else content
    return bytes(content)


def check(path: Path) -> str:
    """Read a log and make its series; return what went wrong, empty where it was read or refused in one sentence."""
    began = time.process_time()
    try:
        series_from([read_log(path)], Selection(gpus=2 if path.stat().st_size % 2 else None))
    except UserError as fault:
        if "\n" in str(fault) or not str(fault).isprintable():
            return f"not one clean sentence: {fault!r}"
    except BaseException as fault:
        return f"{type(fault).__name__}: {fault}"
    return "" if time.process_time() - began < MAX_SECONDS else "too slow"


class HangError(BaseException):
    """Not an Exception, so that no reader can turn it into a sentence."""


def fuzz(folder: Path, num: int, seed: int = 7) -> dict[str, Any]:
    """Read mutated logs; return the faults, the longest time in seconds and the most memory that was used, in MB."""

    def ring(*_: object) -> None:
        raise HangError("hangs")

    signal.signal(signal.SIGPROF, ring)  # after so much CPU time, however busy the machine is
    dice, whole, faults, longest = random.Random(seed), seeds(folder), [], 0.0
    for number in range(num):
        name, data = whole[number % len(whole)]
        path = folder / name
        path.write_bytes(mutated(data, dice))
        signal.setitimer(signal.ITIMER_PROF, 2 * MAX_SECONDS)
        began = time.process_time()
        fault = check(path)
        longest = max(longest, time.process_time() - began)
        if fault:
            (folder / f"fault-{number}-{name}").write_bytes(path.read_bytes())
            faults.append(f"{number} {name}: {fault}")
        signal.setitimer(signal.ITIMER_PROF, 0)
    return {"faults": faults, "seconds": longest, "megabytes": peak_megabytes()}


if __name__ == "__main__":
    print(json.dumps(fuzz(Path(sys.argv[1]), *map(int, sys.argv[2:]))))
