"""Run a study for as long as a machine is lent, and seal forecasts of its runs while they train.

    python benchmarks/lease.py gpu-forward --out runs/forward --jobs 12 --seconds 600 --set model.path=FOLDER

The seeds of the base come first, then every arm, seed by seed; or those that --runs names, in its order. A run that
fails is started once more, last. At the first evaluation past each share of its budget a run's forecast is sealed by
`scalerl forecast RUN --x flops --fit-until C --seal FILE`. When the time is up, what still trains is killed and stays
as far as it came. OUT has runs/, logs/ and sealed/, for benchmarks/study_table.py. With --keep-answers runs keep what
was written at their evaluations (benchmarks/answers.py), with --generator they sample with rounded weights
(benchmarks/rounded.py).
"""

import argparse
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalerl import store
from scalerl.errors import RunFolderError
from scalerl.study.controller import axis_of
from scalerl.study.die_with_parent import dying_with_parent
from scalerl.study.plan import PlannedRun, make_plan
from scalerl.study.spec import divided, load_study

SHARES = {"tenth": 0.1, "quarter": 0.25}
"""Shares of the budget at which a forecast is sealed."""
SCALERL = (sys.executable, "-m", "scalerl")
KEEPS_ANSWERS = (sys.executable, str(Path(__file__).with_name("answers.py")))
ROUNDS = (sys.executable, str(Path(__file__).with_name("rounded.py")))


@dataclass(slots=True, kw_only=True)
class Lease:
    out: Path
    train: tuple[str, ...]
    began: float = field(default_factory=time.monotonic)
    sealed: set[Path] = field(default_factory=set)
    sealing: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def spent(self) -> float:
        return time.monotonic() - self.began

    def say(self, text: str) -> None:
        print(f"{self.spent:6.1f} s  {text}", flush=True)

    def start(self, run: PlannedRun) -> subprocess.Popen[bytes]:
        recipe = self.out / "recipes" / f"{run.name}.json"
        recipe.parent.mkdir(parents=True, exist_ok=True)
        store.write_json(recipe, run.recipe.model_dump(mode="json"))
        return self._call(run.name, *self.train, str(recipe), "--out", str(self.out / "runs" / run.name))

    def seal(self, run: PlannedRun) -> None:
        """Start to seal the forecasts that are due."""
        column, limit = axis_of(run)
        folder = self.out / "runs" / run.name
        computes = [float(row[column]) for row in evaluations(folder)]
        for name, share in SHARES.items():
            file = self.out / "sealed" / name / f"{run.name}-{name}.json"
            past = [compute for compute in computes if compute >= share * limit]
            if past and file not in self.sealed:
                self.sealed.add(file)
                file.parent.mkdir(parents=True, exist_ok=True)
                until = ("--fit-until", f"{past[0]:.17g}", "--at", f"{limit:g}")
                words = (*SCALERL, "forecast", str(folder), "--x", column, *until, "--seal", str(file))
                self.sealing.append(self._call(f"{run.name}-{name}", *words))

    def _call(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        log = self.out / "logs" / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as file:
            command = dying_with_parent(list(words))
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)


def evaluations(folder: Path) -> list[Any]:
    try:
        return list(store.read_evals(folder))
    except RunFolderError:
        return []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--runs", nargs="+", metavar="ARM-seedN", help="these alone, in this order")
    parser.add_argument("--no-seals", action="store_true")
    parser.add_argument("--keep-answers", action="store_true")
    parser.add_argument(
        "--generator", choices=("fp8", "int8", "int4", "int3"), help="round the weights that are sampled with"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    of_study, of_recipes = divided(arguments.set)
    plan = make_plan(*load_study(arguments.study, of_study), of_recipes, gpu=True)
    train = KEEPS_ANSWERS if arguments.keep_answers else (*SCALERL, "train", "--no-plots")
    if arguments.generator:
        train = (*ROUNDS, arguments.generator)
    lease = Lease(out=arguments.out, train=train)
    waiting = sorted(plan.runs, key=lambda run: run.arm != plan.base.name)
    if arguments.runs:
        named = {run.name: run for run in plan.runs}
        waiting = [named[name] for name in arguments.runs]
    again: set[str] = set()
    running: dict[str, tuple[PlannedRun, subprocess.Popen[bytes]]] = {}
    while (waiting or running) and lease.spent < arguments.seconds:
        while waiting and len(running) < arguments.jobs:
            run = waiting.pop(0)
            running[run.name] = run, lease.start(run)
            lease.say(f"{run.name} started")
        for name, (run, process) in list(running.items()):
            if not arguments.no_seals:
                lease.seal(run)
            if process.poll() is not None:
                del running[name]
                if process.returncode and name not in again:
                    again.add(name)
                    shutil.rmtree(arguments.out / "runs" / name, ignore_errors=True)
                    waiting.append(run)
                row = (evaluations(arguments.out / "runs" / name) or [{}])[-1]
                lease.say(
                    f"{name} ended, exit code {process.returncode}: {row.get('reward')} at step {row.get('step')}"
                )
        time.sleep(0.5)
    for name, (_, process) in running.items():
        process.kill()
        process.wait()
        row = (evaluations(arguments.out / "runs" / name) or [{}])[-1]
        lease.say(f"{name} cut: {row.get('reward')} at step {row.get('step')}")
    for process in lease.sealing:
        process.wait()
    lease.say(f"{len(lease.sealed)} forecasts sealed, {len(waiting)} runs not started")


if __name__ == "__main__":
    main()
