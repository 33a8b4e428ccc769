"""Files and folders that appear completely or not at all, and why a write failed."""

import errno
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from scalerl.errors import StoreError

UNFINISHED = ".unfinished"
"""Suffix of a file or folder that is still being written."""


@contextmanager
def write_errors(path: str | Path) -> Iterator[None]:
    """Turn an OSError into a StoreError that names the path."""
    try:
        yield
    except OSError as fault:
        raise StoreError(f"cannot write {path}: {write_failure(fault, Path(path))}") from fault


@contextmanager
def descriptor_of(path: str | Path, flags: int) -> Iterator[int]:
    """Yield the descriptor of a file, which is closed afterwards."""
    descriptor = os.open(path, flags, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """Yield a path to write to; the file appears at `target` once it is on disk, and is removed if anything fails."""
    # With the process's number: two processes may write the same report.
    unfinished = target.with_name(f".{target.name}.{os.getpid()}{UNFINISHED}")
    with write_errors(target):
        try:
            yield unfinished
            _flush(unfinished)
            os.replace(unfinished, target)
        except BaseException:
            # A read-only file system refuses this too, whether or not there is a file.
            with suppress(OSError):
                unfinished.unlink()
            raise


@contextmanager
def new_folder(target: Path, *, replace: bool = False, failures: tuple[type[Exception], ...] = ()) -> Iterator[Path]:
    """Yield a folder to fill; it appears at `target` once all of it is on disk, and is removed if anything fails.

    `failures` are exceptions of the library that writes; they count as a failed write, like an OSError.
    """
    unfinished, replaced = (target.with_name(f"{target.name}{end}{UNFINISHED}") for end in ("", ".replaced"))
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        yield unfinished
        for path in [*unfinished.rglob("*"), unfinished]:
            _flush(path)
        if replace and target.exists():
            # Renamed, not removed: a crash between the two renames is very unlikely.
            os.rename(target, replaced)
        os.rename(unfinished, target)
        _flush(target.parent)
        shutil.rmtree(replaced, ignore_errors=True)
    except BaseException as error:
        if replaced.exists() and not target.exists():
            os.rename(replaced, target)
        shutil.rmtree(unfinished, ignore_errors=True)
        if isinstance(error, (OSError, *failures)):
            kept = "; what was there before is kept" if target.parent.is_dir() else ""
            raise StoreError(f"cannot write {target}: {write_failure(error, target)}{kept}") from error
        raise


@contextmanager
def locked(path: Path, busy: Exception, *, wait_s: float = 0.0) -> Iterator[int]:
    """Hold the lock of a file or folder, which one process has at a time; raise `busy` if another keeps it so long.

    Yields the descriptor: whoever inherits it holds the lock too, and the system releases it however they end.
    """
    import fcntl  # POSIX only; the rest of this module is also used where it is missing

    with descriptor_of(path, os.O_RDONLY) as descriptor:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise busy from None
                time.sleep(0.1)
            except OSError:  # A file system without locks is not a reason not to work.
                break
        yield descriptor


def _flush(path: Path) -> None:
    with descriptor_of(path, os.O_RDONLY) as descriptor:
        os.fsync(descriptor)


def write_failure(error: Exception, path: Path | None = None) -> str:
    """Return why a write failed, to this path if it is given."""
    # safetensors reports the system's error as text.
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error):
        return "the disk is full"
    is_absent = number == errno.ENOENT or "No such file" in str(error)
    if path is not None and is_absent and not path.parent.exists():
        gone = next(folder for folder in reversed(path.absolute().parents) if not folder.exists())
        return f"the folder {gone} is gone: it was removed or renamed"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
