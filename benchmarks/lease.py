"""Run a study for as long as a machine is lent, and seal forecasts of its runs while they train.

    python benchmarks/lease.py loo --out runs/loo --jobs 12 --seconds 600 --set model.path=FOLDER

The seeds of the base come first, then every arm, seed by seed; or those that --runs names, in its order. A run that
fails is started once more, last. At the first evaluation past each share of its budget a run's forecast is sealed by
`scalerl forecast RUN --x AXIS --fit-until C --seal FILE`, where AXIS is that of the budget; with too few evaluations
there is none. When the time is up, what still trains is killed and stays as far as it came.
OUT has runs/, logs/ and sealed/, for benchmarks/study_table.py.
"""

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalerl.errors import RunFolderError
from scalerl.processes import dying_with_parent
from scalerl.runfolder import store
from scalerl.study.plan import PlannedRun, make_plan
from scalerl.study.spec import divided, load_study

SHARES = {"tenth": 0.1, "quarter": 0.25, "half": 0.5}
"""Shares of the budget at which a forecast is sealed."""
SCALERL = (sys.executable, "-m", "scalerl")


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
        print(f"{self.spent:6.1f} s  {self.out.name}: {text}", flush=True)

    def start(self, run: PlannedRun) -> subprocess.Popen[bytes]:
        recipe = self.out / "recipes" / f"{run.name}.json"
        recipe.parent.mkdir(parents=True, exist_ok=True)
        store.write_json(recipe, run.recipe.model_dump(mode="json"))
        return self._call(run.name, *self.train, str(recipe), "--out", str(self.out / "runs" / run.name))

    def seal(self, run: PlannedRun) -> None:
        """Start to seal the forecasts that are due."""
        column, limit = axis_of_budget(run)
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


def axis_of_budget(run: PlannedRun) -> tuple[str, float]:
    """Return the column and the value of the first limit of a run's budget."""
    key, limit = next((key, limit) for key, limit in run.recipe.budget if limit is not None)
    return store.BUDGET_COLUMNS[key], float(limit)


def evaluations(folder: Path) -> list[Any]:
    try:
        return list(store.read_evals(folder))
    except RunFolderError:
        return []


def folders_missing(run: PlannedRun) -> list[str]:
    """Return the folders of models that a run names and that nobody has made yet."""
    named = (run.recipe.model.path, getattr(run.recipe.kl.reference, "path", ""))
    return [path for path in named if path and "/" in path and "://" not in path and not Path(path).exists()]


def train_all(
    waiting: list[tuple[Lease, PlannedRun]],
    *,
    jobs: int,
    seconds: float,
    seals: bool = True,
    being_made: Callable[[], bool] = lambda: False,
) -> list[PlannedRun]:
    """Train these runs, `jobs` at a time, until all have ended or the time is up; return those that never began.

    A run whose model is not there yet is passed over while `being_made` says that somebody makes one.
    """
    clock = waiting[0][0]
    again: set[int] = set()
    running: list[tuple[Lease, PlannedRun, subprocess.Popen[bytes]]] = []
    while (waiting or running) and clock.spent < seconds:
        ready = [item for item in waiting if not (being_made() and folders_missing(item[1]))]
        for lease, run in ready[: jobs - len(running)]:
            waiting.remove((lease, run))
            running.append((lease, run, lease.start(run)))
            lease.say(f"{run.name} started")
        for lease, run, process in list(running):
            if seals:
                lease.seal(run)
            if process.poll() is not None:
                running.remove((lease, run, process))
                if process.returncode and id(run) not in again:
                    again.add(id(run))
                    shutil.rmtree(lease.out / "runs" / run.name, ignore_errors=True)
                    waiting.append((lease, run))
                lease.say(f"{run.name} ended, exit code {process.returncode}: {last_evaluation(lease, run)}")
        time.sleep(0.5)
    for lease, run, process in running:
        process.kill()
        process.wait()
        lease.say(f"{run.name} cut: {last_evaluation(lease, run)}")
    return [run for _, run in waiting]


def last_evaluation(lease: Lease, run: PlannedRun) -> str:
    rows = evaluations(lease.out / "runs" / run.name)
    if not rows:
        return "no evaluation"
    # The task's own set is the first of each evaluation.
    of_last = [row for row in rows if row["step"] == rows[-1]["step"]]
    return f"{of_last[0].get('reward')} at step {of_last[0].get('step')}"


def runs_of(study: str, changes: Sequence[str]) -> list[PlannedRun]:
    """Return the runs of a study, those of its base first."""
    of_study, of_recipes = divided(changes)
    plan = make_plan(*load_study(study, of_study), of_recipes, gpu=True)
    return sorted(plan.runs, key=lambda run: run.arm != plan.base.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--runs", nargs="+", metavar="ARM-seedN", help="these alone, in this order")
    parser.add_argument("--no-seals", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    train = (*SCALERL, "train", "--no-plots")
    lease = Lease(out=arguments.out, train=train)
    runs = runs_of(arguments.study, arguments.set)
    if arguments.runs:
        named = {run.name: run for run in runs}
        runs = [named[name] for name in arguments.runs]
    waiting = [(lease, run) for run in runs]
    left = train_all(waiting, jobs=arguments.jobs, seconds=arguments.seconds, seals=not arguments.no_seals)
    for process in lease.sealing:
        process.wait()
    # A forecast that comes too early has no curve, and so no file.
    num_sealed = sum(file.exists() for file in lease.sealed)
    lease.say(f"{num_sealed} of {len(lease.sealed)} forecasts sealed, {len(left)} runs not started")


if __name__ == "__main__":
    main()
