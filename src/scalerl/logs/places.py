"""What lies at a path: a run folder, a study, a log, or a folder of them. Decided by names alone; no log is read."""

import difflib
import glob
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scalerl import store
from scalerl.errors import InputError
from scalerl.logs.frame import clean, listed

Kind = Literal["run", "study", "log"]
Holds = Callable[[Path], bool]

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
MIN_STEPS = 3
"""Fewer files that are named after steps are not a log."""

_MAX_LOGS = 64
_MAX_ENTRIES = 2000
# Folders below the one that is given, as in outputs/DATE/TIME/train.log.
_MAX_DEPTH = 3
_STEP_NAME = re.compile(
    r"(?P<run>.*?)[-_ ]?(?:global_?)?(?:step|iter|iteration|checkpoint|ckpt|update|epoch)s?[-_ ]?(?P<step>\d{1,12})",
    re.IGNORECASE,
)
_EVALUATION = re.compile(r"result|eval|metric|score|summary", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Place:
    """Something that can be read as one."""

    path: Path
    kind: Kind
    is_named: bool = True
    """Whether the user named it, and not only a folder around it: what cannot be read is a fault then."""


def find(given: str | Path) -> list[list[Place]]:
    """Return what a path or a pattern such as runs/*.jsonl stands for, in groups that may be one run each."""
    path = Path(given)
    if path.exists() or not glob.has_magic(str(given)):
        return groups(path)
    matches = [Path(match) for match in sorted(glob.glob(str(given), recursive=True))]
    if not matches:
        raise InputError(f"no file matches {given}: check the path.")
    return [group for match in matches for group in groups(match)]


def groups(path: Path, depth: int = 0, holds: Holds = Path.exists) -> list[list[Place]]:
    """Return what lies at a path: the runs in a folder, or else its logs, those of sub-folders too.

    A log beside what lies in the only other folder may be of the same run: they are one group.
    """
    is_named = depth == 0
    if not path.is_dir():
        return [[Place(path, "log", is_named)]]
    whole = whole_kinds(path)
    if whole[:1] in (["run"], ["study"]):
        return [[Place(path, "run" if whole[0] == "run" else "study", is_named)]]
    entries = [entry for entry in _entries(path) if holds(entry)]
    files = [Place(file, "log", False) for file in entries if file.suffix in LOG_SUFFIXES and file.is_file()]
    if whole == ["a file each step"]:
        taken = step_files(path)
        return [[Place(path, "log", is_named), *(each for each in files if each.path not in taken)]]
    if whole:
        return [[Place(path, "log", is_named)]]
    folders = [entry for entry in entries if entry.is_dir()] if depth < _MAX_DEPTH else []
    runs = [folder for folder in folders if store.is_run_folder(folder)]
    inner = [group for folder in runs or folders for group in groups(folder, depth + 1, holds)]
    beside = [] if runs else files[:_MAX_LOGS]
    if len(inner) == 1 == len(inner[0]):
        return [[*inner[0], *beside]]
    return [*inner, *([beside] if beside else [])]


def whole_kinds(folder: Path) -> list[str]:
    """Return the kinds of log that a folder may be as a whole, in the order of trial."""
    return [kind for kind in WHOLE if files_of(folder, kind)]


def files_of(folder: Path, kind: str) -> list[Path]:
    """Return the files that make a folder a log of this kind, each once, the shortest paths first."""
    if kind == "a file each step":
        return list(step_files(folder))
    there = {file for pattern in WHOLE[kind] for file in folder.glob(pattern) if file.is_file()}
    return sorted(there, key=lambda path: (len(str(path)), path))


def step_files(folder: Path) -> dict[Path, tuple[str, int]]:
    """Return the files of evaluations named after steps, with run and step: step_10/results.json, grpo_step_10.json.

    None are returned for fewer steps than a log has. A folder of weights holds other JSON, too.
    """
    named: dict[Path, tuple[str, int]] = {}
    for file in {file for pattern in WHOLE["a file each step"] for file in folder.glob(pattern)}:
        inside = file.relative_to(folder)
        name = _STEP_NAME.fullmatch(inside.parts[0].removesuffix(".json"))
        if name and (len(inside.parts) == 1 or _EVALUATION.search(file.stem)):
            named[file] = (name["run"], int(name["step"]))
    ordered = dict(sorted(named.items(), key=lambda item: (item[1], item[0])))
    return ordered if len({step for _, step in named.values()}) >= MIN_STEPS else {}


def _entries(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))[:_MAX_ENTRIES]


# What to say where there is nothing to read


def no_such_file(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"there is no file {path}: its folder {folder} does not exist either."
    near = difflib.get_close_matches(path.name, sorted(item.name for item in folder.iterdir()), n=3, cutoff=0.5)
    advice = f"did you mean {' or '.join(str(folder / name) for name in near)}?" if near else "check the path."
    return f"there is no file {path}: {advice}"


def nothing_to_read(path: Path, logs: Sequence[Path]) -> str:
    if logs:
        what = "is a folder of runs" if all(map(store.is_run_folder, logs)) else "holds several logs"
        return f"{path} {what} ({listed([log.name for log in logs])}): give them by name, such as {logs[0]}."
    entries = sorted(clean(item.name) for item in path.iterdir())
    content = f"holds {listed(entries)}" if entries else "is empty"
    return (
        f"the folder {path} {content}: give a log file, a run folder (with {store.EVALS}) or a folder of tensorboard "
        "event files."
    )
