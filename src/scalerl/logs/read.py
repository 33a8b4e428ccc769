"""Read a log of any known kind into a `Table`: decide its kind once (detect.py), then call the reader of that kind."""

import glob
from collections.abc import Callable, Sequence
from pathlib import Path

from scalerl.errors import InputError
from scalerl.logs.attempts import separate_attempts
from scalerl.logs.detect import Kind, Source, detect, logs_inside
from scalerl.logs.formats import console, csv, jsonl, run_folder, tensorboard, trackio, trainer_state, wandb
from scalerl.logs.table import Table, with_gpus


def read_table(path: str | Path) -> Table:
    """Return the rows of a log of any known kind, with its columns recognised."""
    path = Path(path)
    try:
        source = detect(path)
        return with_gpus(separate_attempts(READERS[source.kind](source)), None)
    except OSError as fault:
        raise InputError(f"cannot read {path}: {fault.strerror or fault}.") from None
    except InputError:
        raise
    except UnicodeDecodeError as fault:
        raise InputError(f"{path} is not UTF-8 text (byte {fault.start}): save it as UTF-8.") from None
    except ValueError as fault:  # from the run folder or an event file, whose readers know nothing of users
        raise InputError(f"{fault}; mend it or give another file.") from None


def read_tables(paths: Sequence[str | Path]) -> list[Table]:
    """Read several logs, in the order given; patterns such as runs/*.jsonl and folders of logs stand for the logs."""
    return [read_table(path) for path in expand(paths)]


def expand(paths: Sequence[str | Path]) -> list[Path]:
    """Return the logs that paths stand for: matches of a pattern (some shells leave it to us), logs of a folder."""
    logs: list[Path] = []
    for given in map(Path, paths):
        matches = [given]
        if not given.exists() and glob.has_magic(str(given)):
            matches = [Path(match) for match in sorted(glob.glob(str(given), recursive=True))]
            if not matches:
                raise InputError(f"no file matches {given}: check the path.")
        for match in matches:
            logs += _logs_of(match)
    return logs


def _logs_of(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    try:
        detect(path)
    except InputError:
        return logs_inside(path) or [path]
    except (OSError, ValueError):
        return [path]
    return [path]


READERS: dict[Kind, Callable[[Source], Table]] = {
    "run": lambda source: run_folder.read_run(source.path, source.files[0].name),
    "study": lambda source: run_folder.read_study(source.path),
    "trainer_folder": lambda source: trainer_state.read_trainer_folder(source.path, source.files),
    "tensorboard": lambda source: tensorboard.read_event_files(source.path, source.files),
    "wandb": lambda source: wandb.read_wandb_files(source.path, source.files),
    "trackio": lambda source: trackio.read_trackio(source.path),
    "json": lambda source: trainer_state.read_json(source.path, source.text),
    "jsonl": lambda source: jsonl.read_lines(source.path, source.text),
    "console": lambda source: console.read_console(source.path, source.text),
    "wandb_export": lambda source: csv.read_wandb_export(source.path, source.text),
    "csv": lambda source: csv.read_csv(source.path, source.text),
}
