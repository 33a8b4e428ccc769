"""Find the run folders, studies and logs at the paths that the user named. Does not read any log."""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from scalerl.forecast.logs.names import file_names
from scalerl.forecast.logs.places import groups
from scalerl.forecast.report.document import Say, say
from scalerl.forecast.report.safe_files import Root, read_object
from scalerl.runfolder import store

MOST_SOURCES = 300
"""Runs and logs that are followed; what comes after them is named in a note."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One run folder, log or study."""

    path: Path
    root: Root
    kind: Literal["run", "log", "study", "all"]
    """`all` is everything that is watched, together."""
    name: str = ""
    study: str | None = None
    """Key of the study it belongs to."""
    arm: str = ""
    seed: int | None = None
    quiet: bool = False
    """Whether a log that cannot be read is left out: it was not named, only its folder was."""

    plan: Mapping[str, Any] = field(default_factory=dict)
    """The study.json of a study."""
    members: tuple["Source", ...] = ()
    """What everything together holds."""
    faults: tuple[Say, ...] = ()

    @property
    def key(self) -> str:
        """A name for addresses: never a path."""
        return hashlib.sha256(os.fsencode(self.path.absolute())).hexdigest()[:12]


def discover(roots: Sequence[Root]) -> tuple[list[Source], list[Say]]:
    """Look at every named path; return what was found, in their order, and notes on what is left out."""
    found = [source for root in roots if root.path is not None for source in _look(root.path, root)]
    sources = list({source.key: source for source in found}.values())
    notes = []
    if left_out := [source for source in sources if source.kind != "study"][MOST_SOURCES:]:
        notes.append(say("too_many_sources", most=MOST_SOURCES, num=len(left_out)))
        sources = [source for source in sources if source not in left_out]
    unnamed = [source.path for source in sources if not source.name]
    names = dict(zip(unnamed, file_names(unnamed), strict=True)) if unnamed else {}
    return [source if source.name else replace(source, name=names[source.path]) for source in sources], notes


def _look(path: Path, root: Root) -> Iterator[Source]:
    """Yield what lies at a path, as `fit` would read it, and the runs of studies."""
    found = groups(path, holds=root.holds, everything=True) if path.exists() else []
    for place in (place for group in found for place in group):
        if place.kind == "study":
            yield from _study(place.path, root)
        else:
            yield Source(path=place.path, root=root, kind=place.kind, quiet=place.kind == "log" and not place.is_named)


# Studies


def _study(folder: Path, root: Root) -> Iterator[Source]:
    """Yield the runs of a study and the study itself, whose faults name the folders that lie outside it."""
    plan = read_object(folder / store.STUDY, root)[0]
    inside = Root(folder)
    name = str(plan.get("name") or folder.resolve().name)
    faults = []
    study = Source(path=folder, root=inside, kind="study", name=name, plan=plan)
    for run in planned(study):
        if inside.holds(run.path):
            yield replace(run, name=f"{name}/{run.name}", study=study.key)
        else:
            faults.append(say("outside_study", arm=run.arm, seed=run.seed))
    yield replace(study, faults=tuple(faults))


def planned(study: Source) -> Iterator[Source]:
    """Yield the run folders of a study's plan."""
    runs = study.plan.get("runs")
    for row in runs if isinstance(runs, list) else ():
        if isinstance(row, dict) and row.get("arm") is not None:
            arm = str(row["arm"])
            seed = row.get("seed")
            seed = seed if isinstance(seed, int) else None
            name = f"{arm}-seed{seed or 0}"
            path = study.path / store.portable(str(row.get("folder") or f"runs/{name}"))
            yield Source(path=path, root=study.root, kind="run", name=name, arm=arm, seed=seed)
