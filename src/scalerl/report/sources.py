"""Find the run folders, studies and logs at the paths that the user named. Does not read any log."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from scalerl import store
from scalerl.logs.names import file_names
from scalerl.logs.source import LOG_SUFFIXES
from scalerl.report.files import Root, json_object, read_inside

MOST_SOURCES = 300
"""Runs and logs that are followed; what comes after them is named in a note."""
_MOST_ENTRIES = 2000
_MAX_JSON = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One run folder or log."""

    path: Path
    root: Root
    kind: Literal["run", "log"]
    name: str = ""
    study: str | None = None
    """Key of the study it belongs to."""
    arm: str = ""
    seed: int | None = None
    quiet: bool = False
    """Whether a log that cannot be read is left out: it was not named, only its folder was."""

    @property
    def key(self) -> str:
        """A name for addresses: never a path."""
        return key_of(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    path: Path
    root: Root
    name: str
    plan: dict[str, Any]
    faults: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return key_of(self.path)


@dataclass(slots=True)
class Discovery:
    """Everything that was found, in the order of the named paths."""

    sources: list[Source] = field(default_factory=list)
    studies: list[Study] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def key_of(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:12]


def discover(roots: Sequence[Root]) -> Discovery:
    """Look at every named path again: runs may have appeared, grown into studies, or vanished."""
    result = Discovery()
    for root in roots:
        if root.path is not None:
            _look(root.path, root, result, depth=0)
    result.sources = list({source.key: source for source in result.sources}.values())
    if len(result.sources) > MOST_SOURCES:
        left_out = len(result.sources) - MOST_SOURCES
        result.notes.append(f"Only the first {MOST_SOURCES} runs and logs are followed; {left_out} more are not.")
        del result.sources[MOST_SOURCES:]
    unnamed = [source.path for source in result.sources if not source.name]
    names = dict(zip(unnamed, file_names(unnamed), strict=True)) if unnamed else {}
    result.sources = [source if source.name else replace(source, name=names[source.path]) for source in result.sources]
    return result


def _look(path: Path, root: Root, result: Discovery, depth: int) -> None:
    if not path.exists() or not root.holds(path):
        return
    if not path.is_dir():
        result.sources.append(Source(path=path, root=root, kind="log", quiet=depth > 0))
    elif (plan := _study_plan(path, root)) is not None:
        _add_study(path, root, plan, result)
    elif store.is_run_folder(path):
        result.sources.append(Source(path=path, root=root, kind="run"))
    else:
        _look_inside(path, root, result, depth)


def _look_inside(folder: Path, root: Root, result: Discovery, depth: int) -> None:
    """Look at a folder that is neither a run nor a study: a trainer's output, or a folder of runs or logs."""
    entries = [entry for entry in _entries(folder) if root.holds(entry)]
    if _is_log_folder(entries):
        result.sources.append(Source(path=folder, root=root, kind="log", quiet=depth > 0))
        return
    if depth < 2:
        for entry in entries:
            if entry.is_dir():
                _look(entry, root, result, depth + 1)
    for entry in entries:
        if entry.suffix in LOG_SUFFIXES and entry.is_file():
            result.sources.append(Source(path=entry, root=root, kind="log", quiet=True))


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


def _study_plan(folder: Path, root: Root) -> dict[str, Any] | None:
    plan, fault = json_object(read_inside(folder / store.STUDY, root, _MAX_JSON))
    return None if fault else plan or None


def _add_study(folder: Path, root: Root, plan: dict[str, Any], result: Discovery) -> None:
    faults: list[str] = []
    name = str(plan.get("name") or folder.resolve().name)
    inside = Root(folder)
    for arm, seed, run_folder in planned(plan):
        path = folder / store.portable(run_folder)
        if not inside.holds(path):
            faults.append(f"{arm}, seed {seed}: its folder lies outside the study and is not read.")
            continue
        result.sources.append(
            Source(
                path=path,
                root=inside,
                kind="run",
                name=f"{name}/{arm}-seed{seed}",
                study=key_of(folder),
                arm=arm,
                seed=seed,
            )
        )
    result.studies.append(Study(path=folder, root=root, name=name, plan=plan, faults=tuple(faults)))


def planned(plan: dict[str, Any]) -> Iterator[tuple[str, int | None, str]]:
    """Yield arm, seed and folder of each run of a plan."""
    runs = plan.get("runs")
    for row in runs if isinstance(runs, list) else ():
        if isinstance(row, dict) and row.get("arm") is not None:
            arm, seed = str(row["arm"]), row.get("seed")
            seed = seed if isinstance(seed, int) else None
            yield arm, seed, str(row.get("folder") or f"runs/{arm}-seed{seed or 0}")
