"""Find the run folders, studies and logs at the paths that the user named. Does not read any log."""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
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
    by_key: dict[str, Source] = {}
    for root in roots:
        if root.path is not None:
            by_key |= {source.key: source for source in _sources_at(root.path, root)}
    found: list[Source] = []
    num_followed = 0
    num_left_out = 0
    for source in by_key.values():
        num_followed += source.kind != "study"
        if source.kind != "study" and num_followed > MOST_SOURCES:
            num_left_out += 1
        else:
            found.append(source)
    notes: list[Say] = []
    if num_left_out:
        notes.append(say("too_many_sources", most=MOST_SOURCES, num=num_left_out))
    return _named(found), notes


def _named(sources: Sequence[Source]) -> list[Source]:
    """Name the sources that have no name after what tells their paths apart."""
    unnamed = [source.path for source in sources if not source.name]
    if not unnamed:
        return [*sources]
    names = dict(zip(unnamed, file_names(unnamed), strict=True))
    return [source if source.name else replace(source, name=names[source.path]) for source in sources]


def _sources_at(path: Path, root: Root) -> Iterator[Source]:
    """Yield what lies at a path, as `fit` would read it, and the runs of studies."""
    if not path.exists():
        return
    for place in chain.from_iterable(groups(path, holds=root.holds, everything=True)):
        if place.kind == "study":
            yield from _study(place.path, root)
        else:
            is_quiet = place.kind == "log" and not place.is_named
            yield Source(path=place.path, root=root, kind=place.kind, quiet=is_quiet)


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
