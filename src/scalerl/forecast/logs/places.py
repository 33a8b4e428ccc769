"""What lies at a path: a run folder, a study, a log, or a folder of them. Decided by names alone; no log is read."""

import difflib
import glob
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from scalerl.errors import InputError
from scalerl.forecast.logs.frame import clean, listed
from scalerl.runfolder import store

LOG_SUFFIXES = (
    *(".jsonl", ".csv", ".tsv", ".log", ".out", ".err", ".txt", ".json", ".gz", ".wandb", ".ndjson", ".db"),
    ".parquet",
)
STATE = "trainer_state.json"
WHOLE: dict[str, tuple[str, ...]] = {
    "study": (store.STUDY,),
    "run": (store.RECIPE, store.EVALS),
    "trainer folder": (STATE, f"checkpoint-*/{STATE}"),
    "wandb": ("*.wandb", "*run-*/*.wandb", "wandb/*run-*/*.wandb"),
    "file inside": (store.METRICS, "files/output.log", "output.log"),
    "tensorboard": ("*tfevents*", "*/*tfevents*", "*/*/*tfevents*", "*/*/*/*tfevents*"),
    "a file each step": ("*[0-9].json", "*[0-9]/*.json", "*[0-9]/*/*.json"),
}
"""Folders that are one log as a whole, and the patterns of the files in them that say so, in the order of trial."""

MAX_LOGS = 64
"""Files of one folder that are read, if the user did not name them."""
_MAX_ENTRIES = 2000
_MIN_STEPS = 3
# Folders below the one that is given, as in outputs/DATE/TIME/train.log.
_MAX_DEPTH = 3
_STEP_NAME = re.compile(
    r"(.*?)[-_ ]?(?:global_?)?(?:step|iter|iteration|checkpoint|ckpt|update|epoch)s?[-_ ]?(\d{1,12})", re.IGNORECASE
)
_EVALUATION = re.compile(r"result|eval|metric|score|summary", re.IGNORECASE)


Kind = Literal["run", "study", "log"]


class Place(NamedTuple):
    """Something that can be read as one."""

    path: Path
    kind: Kind
    is_named: bool
    """Whether the user named it, and not only a folder around it: what cannot be read is a fault then."""


Group = list[Place]
"""What may be one run that was logged several times."""


def find(given: str | Path) -> list[Group]:
    """Return what a path or a pattern such as runs/*.jsonl stands for."""
    path = Path(given)
    is_pattern = not path.exists() and glob.has_magic(str(given))
    matches = sorted(glob.glob(str(given), recursive=True)) if is_pattern else [str(path)]
    if not matches:
        raise InputError(f"no file matches {given}: check the path.")
    found: list[Group] = []
    for match in map(Path, matches):
        found += groups(match) if match.is_dir() else [[Place(match, "log", True)]]
    return found


def groups(
    path: Path, depth: int = 0, *, holds: Callable[[Path], bool] = Path.exists, everything: bool = False
) -> list[Group]:
    """Return what lies at a path: the runs in a folder, or else its logs, those of sub-folders too.

    With `everything` logs beside runs count as well, and a folder is one log only by the files directly in it. A log
    beside what lies in the only other folder may be of the same run: they are one group.
    """
    kinds = whole_kinds(path, direct=everything)
    kind: Kind = "run" if kinds == ["run"] else "study" if kinds == ["study"] else "log"
    place = Place(path, kind, depth == 0)
    if kind != "log" or not path.is_dir() or (kinds and kinds != ["a file each step"]):
        return [[place]]
    if not _is_open(path):
        raise InputError(f"{path} cannot be listed: you have no permission for it.")
    entries = [path / name for name in sorted(glob.glob("*", root_dir=path)) if holds(path / name)][:_MAX_ENTRIES]
    files = logs_among(path, entries)
    logs = [Place(file, "log", False) for file in files[: MAX_LOGS if everything else None]]
    if kinds:
        return [[place, *logs]]
    folders = [entry for entry in entries if entry.is_dir() and _is_open(entry)] if depth < _MAX_DEPTH else []
    # Beside runs lie notes and results: only what is a log as a whole counts.
    has_runs = not everything and any(map(store.is_run_folder, folders))
    folders = [folder for folder in folders if whole_kinds(folder)] if has_runs else folders
    inner = [each for folder in folders for each in groups(folder, depth + 1, holds=holds, everything=everything)]
    logs = [] if has_runs else logs
    return [[*inner[0], *logs]] if len(inner) == 1 == len(inner[0]) else [*inner, logs]


def logs_among(folder: Path, entries: Iterable[Path]) -> list[Path]:
    """Return the entries of a folder that may be logs by their names."""
    steps = step_files(folder)
    return [entry for entry in entries if entry.suffix in LOG_SUFFIXES and entry not in steps and entry.is_file()]


def _is_open(folder: Path) -> bool:
    """Return whether a folder can be listed and entered; another one holds no log that could be read."""
    return os.access(folder, os.R_OK | os.X_OK)


def whole_kinds(folder: Path, *, direct: bool = False) -> list[str]:
    """Return the kinds of log that a folder may be as a whole, in the order of trial; none for a file.

    One of our own folders is nothing else.
    """
    files = {kind: files_of(folder, kind) for kind in WHOLE if folder.is_dir()}
    kinds = [kind for kind in files if any(_is_of(folder, file) or not direct for file in files[kind])]
    return kinds[:1] if kinds[:1] in (["study"], ["run"]) else kinds


def _is_of(folder: Path, file: Path) -> bool:
    """Return whether a file lies in a folder itself, or belongs to a checkpoint or a run of wandb in it."""
    return file.parent == folder or file.name in (STATE, "output.log")


def files_of(folder: Path, kind: str) -> list[Path]:
    """Return the files that make a folder a log of this kind, the shortest paths first."""
    there = step_files(folder) if kind == "a file each step" else _matching(folder, kind)
    return sorted(there, key=lambda path: (len(str(path)), path))


def _matching(folder: Path, kind: str) -> set[Path]:
    # glob.glob passes over what cannot be listed, since it vanished or may not be entered.
    names = {name for pattern in WHOLE[kind] for name in glob.glob(pattern, root_dir=folder)}
    return {folder / name for name in names if os.path.isfile(folder / name)}


def step_files(folder: Path) -> dict[Path, tuple[str, int]]:
    """Return the files of evaluations named after steps, with run and step: step_10/results.json, grpo_step_10.json.

    None are returned for fewer steps than a log has. A folder of weights holds other JSON, too.
    """
    named: dict[Path, tuple[str, int]] = {}
    for file in _matching(folder, "a file each step"):
        top, *below = file.relative_to(folder).parts
        name = _STEP_NAME.fullmatch(top.removesuffix(".json"))
        if name and (not below or _EVALUATION.search(file.stem)):
            named[file] = name[1], int(name[2])
    is_log = len({step for _, step in named.values()}) >= _MIN_STEPS
    return dict(sorted(named.items(), key=lambda item: (item[1], item[0]))) if is_log else {}


def no_such_file(path: Path) -> str:
    folder = path.parent
    there = sorted(item.name for item in folder.iterdir()) if folder.is_dir() else []
    near = [str(folder / name) for name in difflib.get_close_matches(path.name, there, n=3, cutoff=0.5)]
    advice = f"did you mean {' or '.join(near)}?" if near else "check the path."
    if not folder.is_dir():
        advice = f"its folder {folder} does not exist either (a project of wandb is wandb:ENTITY/PROJECT)."
    return f"there is no file {path}: {advice}"


def nothing_to_read(path: Path, logs: Sequence[Path]) -> str:
    if logs:
        what = "is a folder of runs" if all(map(store.is_run_folder, logs)) else "holds several logs"
        return f"{path} {what} ({listed([log.name for log in logs])}): give them by name, such as {logs[0]}."
    content = _content(item.name for item in path.iterdir())
    return (
        f"the folder {path} {content}: give a log file (trackers such as MLflow export CSV), a run folder (with "
        f"{store.EVALS}) or tensorboard event files."
    )


def _content(names: Iterable[str]) -> str:
    entries = sorted(map(clean, names))
    return f"holds {listed(entries)}" if entries else "is empty"
