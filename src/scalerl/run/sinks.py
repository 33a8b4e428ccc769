"""Sinks: send the rows of a run to tensorboard, trackio or wandb as well as to its folder.

A number of metrics.jsonl is sent as train/NAME and one of evals.jsonl as eval/SET/NAME, over the step. The run folder
stays the record: a sink that fails is dropped with a warning, and the run goes on.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol

from scalerl.choose import entry
from scalerl.config.secrets import redact
from scalerl.errors import SinkError

Kind = Literal["train", "eval"]

_PROJECT = "scalerl"
_PACKAGES = {"tensorboard": "tensorboardX", "trackio": "trackio", "wandb": "wandb"}


class SinkWarning(UserWarning):
    """A sink has failed; the run goes on without it."""


class Sink(Protocol):
    def log(self, row: Mapping[str, Any], kind: Kind) -> None: ...
    def close(self) -> None: ...


def check_sinks(names: Iterable[str]) -> None:
    """Raise an error if a sink is unknown or its package is not installed; to be called before training."""
    for name in names:
        package = entry(_PACKAGES, name, "the sink")
        if find_spec(package) is None:
            raise SinkError(f'sinks names "{name}", whose package is not installed: pip install {package}')


def scalars(row: Mapping[str, Any], kind: Kind) -> dict[str, float]:
    """Return the finite numbers of a row under the names that sinks show."""
    prefix = f"eval/{row['set']}" if kind == "eval" else "train"
    return {
        f"{prefix}/{name}": value
        for name, value in row.items()
        if name not in ("step", "attempt") and type(value) in (int, float) and math.isfinite(value)
    }


class _Tensorboard:
    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def log(self, row: Mapping[str, Any], kind: Kind) -> None:
        for name, value in scalars(row, kind).items():
            self._writer.add_scalar(name, value, global_step=row["step"])
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _Tracker:
    """A run of wandb or trackio; the two differ in how the step is passed."""

    def __init__(self, run: Any, log: Callable[[dict[str, float], int], None]) -> None:
        self._run, self._log = run, log

    def log(self, row: Mapping[str, Any], kind: Kind) -> None:
        self._log(scalars(row, kind), row["step"])

    def close(self) -> None:
        self._run.finish()


def tensorboard(folder: Path, recipe: Mapping[str, Any], attempt: int) -> Sink:
    """Write event files in the run folder, one per attempt; for each step the latest attempt counts."""
    from tensorboardX import SummaryWriter

    return _Tensorboard(SummaryWriter(str(folder / "tensorboard"), filename_suffix=f".{attempt}"))


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
    return _Tracker(run, lambda values, step: run.log({"step": step, **values}))


def trackio(folder: Path, recipe: Mapping[str, Any], attempt: int) -> Sink:
    """Log to the project scalerl in trackio's local database; `trackio show` opens it."""
    import trackio  # pyright: ignore[reportMissingImports]

    name = folder.resolve().name
    run = trackio.init(project=_PROJECT, group=name, name=f"{name}-{attempt}", config=dict(recipe))
    return _Tracker(run, lambda values, step: run.log(values, step=step))


SINKS: dict[str, Callable[[Path, Mapping[str, Any], int], Sink]] = {
    "tensorboard": tensorboard,
    "trackio": trackio,
    "wandb": wandb,
}


class Sinks:
    """The sinks of a run. One that raises is dropped with a warning."""

    def __init__(self, names: Iterable[str], folder: Path, recipe: Mapping[str, Any], attempt: int) -> None:
        self._open: dict[str, Sink] = {}
        for name in names:
            self._guarded(
                name,
                lambda name=name: self._open.update({name: entry(SINKS, name, "the sink")(folder, recipe, attempt)}),
            )

    def log(self, row: Mapping[str, Any], kind: Kind) -> None:
        for name, sink in list(self._open.items()):
            self._guarded(name, lambda sink=sink: sink.log(row, kind))

    def close(self) -> None:
        for name, sink in list(self._open.items()):
            self._guarded(name, sink.close)

    def _guarded(self, name: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # No failure of a service may end a run.
            self._open.pop(name, None)
            reason = redact(f"{type(error).__name__}: {error}".removesuffix(": "))
            warnings.warn(f"the sink {name} failed and is left out from here on ({reason})", SinkWarning, stacklevel=3)
