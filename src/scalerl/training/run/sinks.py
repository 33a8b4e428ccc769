"""Sinks: send the rows of a run to tensorboard, trackio or wandb, in addition to its folder.

Numbers in metrics.jsonl are sent as train/NAME, numbers in evals.jsonl as eval/SET/NAME, by step. The run folder stays
the record: a sink that fails is dropped with a warning, and the run continues.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

from scalerl.errors import SinkError, failure_text
from scalerl.recipe.secrets import redact
from scalerl.runfolder.store import Row
from scalerl.training.run.hooks import Hook, RunEnd
from scalerl.training.run.rows import Rows

Kind = Literal["train", "eval"]

_PROJECT = "scalerl"
PACKAGES = {"tensorboard": "tensorboardX", "trackio": "trackio", "wandb": "wandb"}


class SinkWarning(UserWarning):
    """A sink has failed; the run goes on without it."""


class Sink(NamedTuple):
    """An open connection to a tracker."""

    log: Callable[[dict[str, float], int], object]
    """Called with the numbers of a row by name, and the step."""
    close: Callable[[], object]


def check_sinks(names: Iterable[str]) -> None:
    """Raise SinkError if the package of a sink is not installed."""
    for name in names:
        package = PACKAGES[name]
        if find_spec(package) is None:
            raise SinkError(f'sinks names "{name}", whose package is not installed: pip install {package}')


def scalars(row: Mapping[str, Any], kind: Kind) -> dict[str, float]:
    """Return the finite numbers of a row, by the names that sinks show."""
    prefix = f"eval/{row['set']}" if kind == "eval" else "train"
    return {
        f"{prefix}/{name}": value
        for name, value in row.items()
        if name not in ("step", "attempt") and type(value) in (int, float) and math.isfinite(value)
    }


def tensorboard(folder: Path, recipe: Mapping[str, Any], attempt: int) -> Sink:
    """Write event files in the run folder, one per attempt; for each step the latest attempt counts."""
    from tensorboardX import SummaryWriter

    writer = SummaryWriter(str(folder / "tensorboard"), filename_suffix=f".{attempt}")

    def log(values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, global_step=step)
        writer.flush()

    return Sink(log, writer.close)


def wandb(folder: Path, recipe: Mapping[str, Any], attempt: int) -> Sink:
    """Log to the wandb project scalerl; WANDB_MODE=offline keeps the run in the run folder, for `wandb sync`."""
    import wandb  # pyright: ignore[reportMissingImports]

    name = folder.resolve().name
    run = wandb.init(
        project=_PROJECT,
        group=name,
        name=f"{name}-{attempt}",
        dir=str(folder),
        config=dict(recipe),
        reinit="create_new",
        settings=wandb.Settings(quiet=True),
    )
    # A metric for the step: wandb's own step counts rows, and a step has a row of each kind.
    run.define_metric("*", step_metric="step")
    return Sink(lambda values, step: run.log({"step": step, **values}), run.finish)


def trackio(folder: Path, recipe: Mapping[str, Any], attempt: int) -> Sink:
    """Log to the project scalerl in trackio's local database; `trackio show` opens it."""
    import trackio  # pyright: ignore[reportMissingImports]

    name = folder.resolve().name
    run = trackio.init(project=_PROJECT, group=name, name=f"{name}-{attempt}", config=dict(recipe))
    return Sink(lambda values, step: run.log(values, step=step), run.finish)


SINKS: dict[str, Callable[[Path, Mapping[str, Any], int], Sink]] = {
    "tensorboard": tensorboard,
    "trackio": trackio,
    "wandb": wandb,
}


class Sinks(Hook):
    """Sends the rows of a run to its sinks. A sink that raises an error is dropped with a warning."""

    def __init__(
        self, names: Iterable[str], rows: Rows, *, folder: Path, recipe: Mapping[str, Any], attempt: int
    ) -> None:
        self._rows = rows
        self._num_sent = {"train": len(rows.metrics), "eval": len(rows.evals)}
        self._open: dict[str, Sink] = {}
        for name in names:
            with self._guarded(name):
                self._open[name] = SINKS[name](folder, recipe, attempt)

    def after_step(self, done: Any, end: RunEnd | None) -> None:
        """Send the rows written since the last call."""
        kinds: dict[Kind, list[Row]] = {"train": self._rows.metrics, "eval": self._rows.evals}
        for kind, rows in kinds.items():
            new = rows[self._num_sent[kind] :]
            self._num_sent[kind] += len(new)
            for name, sink in list(self._open.items()):
                with self._guarded(name):
                    for row in new:
                        sink.log(scalars(row, kind), row["step"])

    def close(self) -> None:
        self.after_step(None, None)
        for name, sink in list(self._open.items()):
            with self._guarded(name):
                sink.close()

    @contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # No failure of a service may end a run.
            self._open.pop(name, None)
            reason = redact(failure_text(error))
            warnings.warn(f"the sink {name} failed and gets no more rows ({reason})", SinkWarning, stacklevel=4)
