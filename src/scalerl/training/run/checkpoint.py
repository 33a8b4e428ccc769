"""Checkpoints: one folder per step, complete or absent, of safetensors and JSON files, never pickle.

    checkpoints/step-00000100/  manifest.json                 step, size and CRC-32 of every other file
                                meta.json                     state of the caller: curriculum, clock, rows ...
                                tensors.<name>.safetensors    weights, optimizer, rng ...    (torch)
                                arrays.<name>.safetensors     groups not trained yet ...     (numpy)

A checkpoint is written under a temporary name, flushed to the disk, then renamed. A crash may leave an unfinished
folder, which the next save removes, but never half a checkpoint. A learner over ranks writes one file of tensors per
rank (training/learner/saved.py) while training continues.

`Checkpoints` is the hook that writes them.
"""

import json
import os
import re
import shutil
import stat
import time
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor

from scalerl.errors import CheckpointError, StoreError, first_line
from scalerl.recipe.parts import CheckpointSettings
from scalerl.runfolder.atomic_files import UNFINISHED, new_folder, write_errors, write_failure
from scalerl.runfolder.json_text import parse_json
from scalerl.training.learner.saved import SavedTensors, file_name, write_tensors
from scalerl.training.run.aside import StateCopier, StateCopy, state_bytes
from scalerl.training.run.hooks import Hook, RunEnd

MANIFEST = "manifest.json"
META = "meta.json"
_NAME = re.compile(r"step-\d{8,}")
_FORMAT = 2
_READ_BYTES = 1 << 24
_ROOM_FOR_ROWS = 100_000_000
"""Bytes of the disk that a checkpoint leaves free."""


@runtime_checkable
class WritesTensors(Protocol):
    """A state that other processes write, such as the ranks of a learner."""

    def write(self, folder: Path) -> "Mapping[str, int] | None":
        """Write files with the names of training/learner/saved.py, complete on return; return CRC-32s if known."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checkpoint:
    """Everything a run needs to continue."""

    step: int
    tensors: "Mapping[str, Mapping[str, Tensor]] | WritesTensors" = field(default_factory=dict)
    """Tensors by kind ("weights", "optimizer", "rng" ...), or an object that writes them.
    After reading a checkpoint, tensors are read from its files only when they are used."""
    arrays: Mapping[str, Mapping[str, NDArray[Any]]] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    """JSON types."""

    @property
    def read_tensors(self) -> "Mapping[str, Mapping[str, Tensor]]":
        """The tensors by kind, of a checkpoint that was read or whose tensors are in this process."""
        assert not isinstance(self.tensors, WritesTensors), "others hold these tensors"
        return self.tensors


def save(
    folder: str | os.PathLike[str], checkpoint: Checkpoint, *, keep: int = 2, keep_step: int | None = None
) -> Path:
    """Write a checkpoint, then remove all but the last `keep` checkpoints and that of `keep_step`.

    Older checkpoints are not touched until the new one is complete. Only if the disk has no room for another one, those
    that the new one replaces are removed first, except the newest.
    """
    parent = Path(folder)
    target = parent / f"step-{checkpoint.step:08d}"
    # Do not create parents: a run folder that was removed must not reappear with only a checkpoint.
    with write_errors(target):
        parent.mkdir(exist_ok=True)
    for left in parent.glob(f"*{UNFINISHED}"):
        shutil.rmtree(left, ignore_errors=True)
    _make_room(parent, checkpoint, keep=keep, keep_step=keep_step)
    with new_folder(target, replace=True, failures=(SafetensorError,)) as unfinished:
        _write(unfinished, checkpoint)
    for step, old in [*steps(parent).items()][:-keep]:
        if step != keep_step:
            shutil.rmtree(old, ignore_errors=True)
    return target


def _make_room(parent: Path, checkpoint: Checkpoint, *, keep: int, keep_step: int | None) -> None:
    """If there is no room for another checkpoint, remove those that it replaces, except the newest one.

    StoreError if that is not enough: a disk that is filled to the last byte has no room for the rows of a run either.
    """
    needed = _num_bytes(checkpoint) + _ROOM_FOR_ROWS
    others = [(step, path) for step, path in steps(parent).items() if step != checkpoint.step]
    for step, path in others[: len(others) - max(keep - 1, 1)]:
        if shutil.disk_usage(parent).free >= needed:
            return
        if step != keep_step:
            shutil.rmtree(path, ignore_errors=True)
    free = shutil.disk_usage(parent).free
    if free < needed:
        raise StoreError(
            f"cannot write {parent}: the disk is full: a checkpoint takes {needed / 1e9:.1f} GB, and {free / 1e9:.1f} "
            f"GB are free"
        )


def _num_bytes(checkpoint: Checkpoint) -> int:
    """Return the size of a checkpoint's tensors, as far as this process knows it."""
    if isinstance(checkpoint.tensors, StateCopy):
        return checkpoint.tensors.num_bytes
    return 0 if isinstance(checkpoint.tensors, WritesTensors) else state_bytes(checkpoint.tensors)


def steps(folder: str | os.PathLike[str]) -> dict[int, Path]:
    """Return the checkpoints of a run by step, oldest first, without verifying them."""
    entries = Path(folder).iterdir() if Path(folder).is_dir() else []
    folders = [path for path in entries if path.is_dir() and _NAME.fullmatch(path.name)]
    return dict(sorted((int(path.name.removeprefix("step-")), path) for path in folders))


def latest(folder: str | os.PathLike[str]) -> Checkpoint | None:
    """Return the newest checkpoint, verified, or None; if it is damaged, CheckpointError names an older intact one."""
    existing = [*steps(folder).values()]
    if not existing:
        return None
    *older, newest = existing
    if (fault := damage(newest)) is None:
        return _read(newest)
    intact = next((path for path in reversed(older) if damage(path) is None), None)
    if intact is None:
        raise CheckpointError(f"checkpoint {newest} is damaged ({fault}), and no older one is intact")
    raise CheckpointError(
        f"checkpoint {newest} is damaged ({fault}); the older {intact.name} is intact: remove or rename {newest.name} "
        f"to continue from there"
    )


def load(path: str | os.PathLike[str]) -> Checkpoint:
    """Verify every byte of a checkpoint and read it to the CPU."""
    if (fault := damage(Path(path))) is not None:
        raise CheckpointError(f"checkpoint {path} is damaged ({fault})")
    return _read(Path(path))


def damage(folder: Path) -> str | None:
    """Return a description of the damage to a checkpoint's files; None if every byte is intact."""
    try:
        manifest = parse_json((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] != _FORMAT:
            return f"its format is {manifest['format']}, but this version reads {_FORMAT}"
        files = {name: (written["bytes"], written["crc32"]) for name, written in manifest["files"].items()}
        # A stranger's manifest may name any file of this machine.
        if META not in files or not isinstance(manifest["step"], int) or any(Path(name).name != name for name in files):
            return f"{MANIFEST} does not describe a checkpoint"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is missing or incomplete"
    for name, (num_bytes, crc32) in files.items():
        try:
            status = (folder / name).lstat()
            if not stat.S_ISREG(status.st_mode):
                return f"{name} is not a file"
            if status.st_size != num_bytes:
                return f"{name} has {status.st_size} bytes instead of {num_bytes}"
            if _crc32(folder / name) != crc32:
                return f"the content of {name} has changed since it was written"
        except OSError as error:
            return f"{name} is missing" if isinstance(error, FileNotFoundError) else f"{name}: {write_failure(error)}"
    return None


def _read(folder: Path) -> Checkpoint:
    from safetensors.numpy import load_file as load_arrays

    try:
        manifest, meta = (parse_json((folder / name).read_text(encoding="utf-8")) for name in (MANIFEST, META))
        arrays = {file.name.split(".")[1]: load_arrays(file) for file in folder.glob(_arrays_file("*"))}
    except (ValueError, SafetensorError) as error:
        raise CheckpointError(f"checkpoint {folder} is damaged ({first_line(error)})") from None
    return Checkpoint(step=manifest["step"], tensors=SavedTensors(folder), arrays=arrays, meta=meta)


def _write(folder: Path, checkpoint: Checkpoint) -> None:
    from safetensors.numpy import save_file as save_arrays

    tensors = checkpoint.tensors
    if isinstance(tensors, WritesTensors):
        checksums = dict(tensors.write(folder) or {})
    else:
        names = {file_name(kind): of_kind for kind, of_kind in tensors.items()}
        checksums = {name: write_tensors(folder / name, of_kind) for name, of_kind in names.items()}
    for name, arrays in checkpoint.arrays.items():
        contiguous = {key: np.asarray(array, order="C") for key, array in arrays.items()}
        save_arrays(contiguous, folder / _arrays_file(name))
    (folder / META).write_text(json.dumps(checkpoint.meta, allow_nan=False), encoding="utf-8")
    files = {}
    for path in sorted(folder.iterdir()):
        crc = checksums[path.name] if path.name in checksums else _crc32(path)
        files[path.name] = {"bytes": path.stat().st_size, "crc32": crc}
    manifest = {"format": _FORMAT, "step": checkpoint.step, "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def _arrays_file(name: str) -> str:
    return f"arrays.{name}.safetensors"


def _crc32(path: Path) -> int:
    """Return the CRC-32 of a file: enough against a torn write or a bad disk, and faster than a cryptographic hash."""
    value = 0
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            value = zlib.crc32(block, value)
    return value


def _timed_save(folder: Path, checkpoint: Checkpoint, *, keep: int, keep_step: int | None) -> float:
    """Save a checkpoint; return the seconds that it took."""
    started = time.monotonic()
    save(folder, checkpoint, keep=keep, keep_step=keep_step)
    return time.monotonic() - started


@dataclass(kw_only=True)
class Checkpoints(Hook):
    """Saves a run at regular intervals and at its end, at most once per step. It must be the last hook.

    If a checkpoint cannot be written, the run continues: `on_failure` is told the first time, and the next checkpoint
    is tried as usual.
    """

    folder: Path
    settings: CheckpointSettings
    step: Callable[[], int]
    content: Callable[[], Checkpoint]
    """Returns the checkpoint of the current step; called while the run is `paused`."""
    best: Callable[[], int | None] = lambda: None
    """Returns the step of the best evaluation, whose checkpoint is kept."""
    paused: Callable[[], AbstractContextManager[object]] = nullcontext
    saved: int = -1
    """The newest saved step; -1 if there is none."""
    on_failure: Callable[[str], None] = lambda reason: None

    def __post_init__(self) -> None:
        self._saved_at = time.monotonic()
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._copier = StateCopier()
        self._written: Future[float] | None = None
        self._begun = self.saved
        """The step of the last checkpoint that was begun."""
        self.failure: str | None = None
        """Why the last checkpoint could not be written; None if it was."""
        self._has_reported = False
        self._row: dict[str, float] = {}

    def prepare(self, state: Mapping[str, Mapping[str, Tensor]] | WritesTensors) -> None:
        """Begin to allocate host memory for copies of states like this one."""
        if not isinstance(state, WritesTensors):
            self._copier.prepare(state)

    def after_step(self, done: Any, end: RunEnd | None) -> None:
        if self._written is not None and self._written.done():
            self.wait()
        step = self.step()
        is_new = step != self._begun or (end is not None and step != self.saved)
        if is_new and (end is not None or self._is_due(step)):
            self._save(step)

    def _is_due(self, step: int) -> bool:
        if step == 0:
            return False
        is_late = time.monotonic() - self._saved_at > 60 * self.settings.every_minutes
        return step % self.settings.every == 0 or self.best() == step or is_late

    def take_row(self) -> dict[str, float]:
        """Return columns about the last checkpoint, once: seconds for which training stopped, and of its writing."""
        row = self._row
        self._row = {}
        return row

    def _save(self, step: int) -> None:
        started = time.monotonic()
        self._save_paused(step)
        self._row["time/checkpoint_stopped_s"] = time.monotonic() - started

    def _save_paused(self, step: int) -> None:
        with self.paused():
            # Wait before the state is copied: there is memory for only one copy.
            self.wait()
            if self.saved == step:
                return
            content = self.content()
            if not isinstance(content.tensors, WritesTensors):
                copied = self._copier.copy(content.tensors)
                content = content if copied is None else replace(content, tensors=copied)
            keep = self.settings.keep
            best = self.best()
            self._written = self._writer.submit(_timed_save, self.folder, content, keep=keep, keep_step=best)
            self._begun = step
            self._saved_at = time.monotonic()
            if not isinstance(content.tensors, WritesTensors):
                # The next step would change these tensors.
                self.wait()

    def wait(self) -> None:
        """Wait until no checkpoint is being written."""
        written = self._written
        self._written = None
        if written is None:
            return
        try:
            self._row["time/checkpoint_written_s"] = written.result()
        except StoreError as error:
            self.failure = str(error)
            if not self._has_reported:
                self._has_reported = True
                self.on_failure(self.failure)
            return
        self.saved = self._begun
        self.failure = None
