"""Read a log of any known kind into a `Table`: decide its kind once (detect.py), then call the reader of that kind."""

from collections.abc import Callable, Sequence
from pathlib import Path

from scalerl.errors import InputError
from scalerl.logs.detect import Kind, Source, detect
from scalerl.logs.formats import csv, jsonl, run_folder, tensorboard, trainer_state
from scalerl.logs.table import Table, with_gpus


def read_table(path: str | Path) -> Table:
    """Return the rows of a log of any known kind, with its columns recognised."""
    path = Path(path)
    try:
        source = detect(path)
        return with_gpus(READERS[source.kind](source), None)
    except OSError as fault:
        raise InputError(f"cannot read {path}: {fault.strerror or fault}.") from None
    except InputError:
        raise
    except UnicodeDecodeError as fault:
        raise InputError(f"{path} is not UTF-8 text (byte {fault.start}): save it as UTF-8.") from None
    except ValueError as fault:  # from the run folder or an event file, whose readers know nothing of users
        raise InputError(f"{fault}; mend it or give another file.") from None


def read_tables(paths: Sequence[str | Path]) -> list[Table]:
    """Read several logs, in the order given."""
    return [read_table(path) for path in paths]


READERS: dict[Kind, Callable[[Source], Table]] = {
    "run": lambda source: run_folder.read_run(source.path, source.files[0].name),
    "study": lambda source: run_folder.read_study(source.path),
    "tensorboard": lambda source: tensorboard.read_event_files(source.path, source.files),
    "json": lambda source: trainer_state.read_json(source.path, source.text),
    "jsonl": lambda source: jsonl.read_lines(source.path, source.text),
    "wandb_export": lambda source: csv.read_wandb_export(source.path, source.text),
    "csv": lambda source: csv.read_csv(source.path, source.text),
}
