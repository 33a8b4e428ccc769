"""Find the run folders, studies and logs at the paths that the user named. Does not read any log."""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from scalerl import store
from scalerl.logs.names import file_names
from scalerl.logs.places import LOG_SUFFIXES
from scalerl.report.files import Root, read_object

MOST_SOURCES = 300
"""Runs and logs that are followed; what comes after them is named in a note."""
_MOST_ENTRIES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One run folder, log or study."""

    path: Path
    root: Root
    kind: Literal["run", "log", "study"]
    name: str = ""
    study: str | None = None
    """Key of the study it belongs to."""
    arm: str = ""
    seed: int | None = None
    quiet: bool = False
    """Whether a log that cannot be read is left out: it was not named, only its folder was."""

    plan: Mapping[str, Any] = field(default_factory=dict)
    """The study.json of a study."""
    faults: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """A name for addresses: never a path."""
        return hashlib.sha256(os.fsencode(self.path.absolute())).hexdigest()[:12]


def discover(roots: Sequence[Root]) -> tuple[list[Source], list[str]]:
    """Look at every named path; return what was found, in their order, and notes on what is left out."""
    found = [source for root in roots if root.path is not None for source in _look(root.path, root, depth=0)]
    sources, notes = list({source.key: source for source in found}.values()), []
    if left_out := [source for source in sources if source.kind != "study"][MOST_SOURCES:]:
        notes.append(f"Only the first {MOST_SOURCES} runs and logs are followed; {len(left_out)} more are not.")
        gone = {source.key for source in left_out}
        sources = [source for source in sources if source.key not in gone]
    unnamed = [source.path for source in sources if not source.name]
    names = dict(zip(unnamed, file_names(unnamed), strict=True)) if unnamed else {}
    return [source if source.name else replace(source, name=names[source.path]) for source in sources], notes


def _look(path: Path, root: Root, depth: int) -> Iterator[Source]:
    if not path.exists() or not root.holds(path):
        return
    if not path.is_dir():
        yield Source(path=path, root=root, kind="log", quiet=depth > 0)
    elif plan := read_object(path / store.STUDY, root)[0]:
        yield from _study(path, plan)
    elif store.is_run_folder(path):
        yield Source(path=path, root=root, kind="run")
    else:
        yield from _look_inside(path, root, depth)


def _look_inside(folder: Path, root: Root, depth: int) -> Iterator[Source]:
    """Look at a folder that is neither a run nor a study: a trainer's output, or a folder of runs or logs."""
    entries = [entry for entry in _entries(folder) if root.holds(entry)]
    if _is_log_folder(entries):
        yield Source(path=folder, root=root, kind="log", quiet=depth > 0)
        return
    for entry in entries if depth < 2 else ():
        if entry.is_dir():
            yield from _look(entry, root, depth + 1)
    for entry in entries:
        if entry.suffix in LOG_SUFFIXES and entry.is_file():
            yield Source(path=entry, root=root, kind="log", quiet=True)


def _entries(folder: Path) -> list[Path]:
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if not entry.name.startswith("."))
    except OSError:
        return []
    return [folder / name for name in names[:_MOST_ENTRIES]]


def _is_log_folder(entries: Sequence[Path]) -> bool:
    """Return whether files in this folder make one log together: event files, a trainer's states, a wandb run."""
    for entry in entries:
        if "tfevents" in entry.name or entry.name == "trainer_state.json" or entry.suffix == ".wandb":
            return True
        if entry.name.startswith("checkpoint-") and (entry / "trainer_state.json").is_file():
            return True
    return any(entry.name == "runs" and _holds_events(entry) for entry in entries)


def _holds_events(folder: Path) -> bool:
    """Return whether a folder, or one directly inside it, holds event files: transformers writes runs/DATE/events..."""
    return any(
        "tfevents" in inner.name
        for entry in [folder, *(each for each in _entries(folder) if each.is_dir())]
        for inner in _entries(entry)
    )


# Studies


def _study(folder: Path, plan: dict[str, Any]) -> Iterator[Source]:
    """Yield the runs of a study and the study itself, whose faults name the folders that lie outside it."""
    name, inside = str(plan.get("name") or folder.resolve().name), Root(folder)
    faults = []
    study = Source(path=folder, root=inside, kind="study", name=name, plan=plan)
    for run in planned(folder, plan, inside):
        if inside.holds(run.path):
            yield replace(run, name=f"{name}/{run.name}", study=study.key)
        else:
            faults.append(f"{run.arm}, seed {run.seed}: its folder lies outside the study and is not read.")
    yield replace(study, faults=tuple(faults))


def planned(folder: Path, plan: Mapping[str, Any], root: Root) -> Iterator[Source]:
    """Yield the run folders of a study's plan."""
    runs = plan.get("runs")
    for row in runs if isinstance(runs, list) else ():
        if isinstance(row, dict) and row.get("arm") is not None:
            arm, seed = str(row["arm"]), row.get("seed")
            seed = seed if isinstance(seed, int) else None
            name = f"{arm}-seed{seed or 0}"
            path = folder / store.portable(str(row.get("folder") or f"runs/{name}"))
            yield Source(path=path, root=root, kind="run", name=name, arm=arm, seed=seed)
