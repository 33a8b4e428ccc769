"""The Python API, as exported by `import scalerl`: one function per command. Heavy imports happen inside them."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from scalerl.errors import python_call

if TYPE_CHECKING:
    from scalerl.forecast.curves import Fit
    from scalerl.forecast.report.python import Runs
    from scalerl.recipe.recipe import Recipe
    from scalerl.training.rl.losses import LossInputs, TokenLoss
    from scalerl.training.run.observer import RunObserver
    from scalerl.training.run.sft.make import SftResult

Settings = Mapping[str, Any]
"""Settings by their dotted names, as in --set: {"optimizer.lr": 1e-3, "loss": "dapo"}."""

Grader = Callable[..., "bool | float | Awaitable[bool | float | None] | None"]
"""grader(text, answer, /, *, settings): True, False, a number from 0 to 1, or None for no verdict; or a coroutine."""

Row = Mapping[str, Any]
"""A problem: {"prompt": ..., "answer": ...}, optionally with "id" and "demonstration"."""

Problems = Callable[[], Iterable[Row]] | Sequence[Row]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedRun:
    """A run that has ended, and the rows it wrote."""

    folder: Path
    ended: Literal["budget", "data", "stopped"]
    """Its budget is spent, its data is exhausted, or its observer asked it to stop."""
    reason: str
    metrics: Sequence[dict[str, Any]]
    """One row per step, as in metrics.jsonl."""
    evals: Sequence[dict[str, Any]]
    """One row per evaluation and set, as in evals.jsonl; `reward` is the mean of correct."""

    def fit(self, evaluation_set: str = "") -> "Fit":
        """Fit its curve; see fit_run."""
        return fit_run(self.folder, evaluation_set)


def load_recipe(recipe: "str | Path | Recipe", settings: Settings | None = None) -> "Recipe":
    """Return a recipe by its name (`scalerl recipe list`), file or value, with settings changed.

    >>> scalerl.load_recipe("tiny-cpu", {"optimizer.lr": 1e-3, "loss": "dapo"}).loss.clip_high
    0.26
    """
    import json

    from scalerl.recipe.keys import leaves
    from scalerl.recipe.load import changed_recipe
    from scalerl.recipe.load import load_recipe as load
    from scalerl.recipe.recipe import Recipe

    # As --set takes them.
    overrides = [f"{key}={json.dumps(value, default=str)}" for key, value in leaves(settings or {}) if value != {}]
    return changed_recipe(recipe, overrides) if isinstance(recipe, Recipe) else load(recipe, overrides)


def train(
    recipe: "str | Path | Recipe",
    out: str | Path,
    *,
    settings: Settings | None = None,
    problems: Problems | None = None,
    grader: Grader | None = None,
    loss: "Callable[[LossInputs], TokenLoss] | None" = None,
    resume: bool = False,
    observer: "RunObserver | None" = None,
    trust_remote_code: bool = False,
) -> TrainedRun:
    """Train by a recipe into a run folder, as `scalerl train` does; return the rows that it wrote.

    `problems`, `grader` and `loss` replace those of the recipe. `problems` are rows, or a function that returns or
    yields them. Functions that can be imported are noted in the folder by their import path. Others, such as a lambda
    or a function of a notebook, work in this process only: to resume, pass them again. Such a grader runs here, without
    the limits on time and memory that graders have in processes of their own. Code that comes with a model runs only
    with `trust_remote_code`, here and in the other functions.

    >>> run = scalerl.train("tiny-cpu", "runs/first", settings={"budget.steps": 60})
    >>> run.evals[-1].get("reward"), scalerl.decide(run.fit()).state
    """
    changes = dict(settings or {})
    if problems is not None:
        changes["task"] = _path_of(problems, "problems")
    if grader is not None:
        changes["task.grader"] = _path_of(grader, "grader")
    if loss is not None:
        changes["loss"] = _path_of(loss, "loss")
    loaded = load_recipe(recipe, changes)
    check_can_train()
    from scalerl.runfolder import store
    from scalerl.training.run.run import TrainingRun

    folder = Path(out)
    end = TrainingRun(_trusting(loaded, trust_remote_code), folder, observer=observer, resume=resume).train()
    return TrainedRun(
        folder=folder,
        ended=end.kind,
        reason=end.reason,
        metrics=store.read_metrics(folder),
        evals=store.read_evals(folder),
    )


def evaluate(
    model: str | Path,
    recipe: "str | Path | Recipe" = "tiny-cpu",
    *,
    settings: Settings | None = None,
    sets: Sequence[str] = (),
    trust_remote_code: bool = False,
) -> list[dict[str, Any]]:
    """Measure a model on a recipe's evaluation sets, or on `sets` of them; return one row per set.

    A row has the reward (mean@n), its 90 % interval, pass@k and the number of correct completions of each problem.

    >>> (row,) = scalerl.evaluate("tiny-base", "tiny-cpu", sets=["main"])
    """
    loaded = load_recipe(recipe, {**(settings or {}), "model.path": str(model)})
    check_can_train()
    from scalerl.training.run.evaluate import evaluate_model

    return evaluate_model(_trusting(loaded, trust_remote_code), sets)


def sft(
    recipe: "str | Path | Recipe",
    out: str | Path,
    *,
    settings: Settings | None = None,
    resume: bool = False,
    observer: "RunObserver | None" = None,
    trust_remote_code: bool = False,
) -> "SftResult | None":
    """Make a base model from the demonstrations of a recipe's task, by its table [sft]; None if it was stopped.

    >>> scalerl.sft("mine.toml", "models/base", settings={"sft.epochs": 2})
    """
    loaded = load_recipe(recipe, settings)
    check_can_train()
    from scalerl.training.run.sft.make import sft as make

    return make(_trusting(loaded, trust_remote_code), Path(out), resume=resume, observer=observer)


def export(
    run: str | Path, out: str | Path, *, step: int | Literal["best", "last"] = "last", trust_remote_code: bool = False
) -> Path:
    """Write the model of one of a run's checkpoints as a normal Hugging Face folder; return the folder."""
    check_can_train()
    from scalerl.training.run.export import export as write

    return write(Path(run), Path(out), str(step), trust_remote_code=trust_remote_code).folder


def fit_run(folder: str | Path, evaluation_set: str = "") -> "Fit":
    """Fit the curve of a run folder, or of another framework's log: reward against compute. Needs no torch.

    `evaluation_set` chooses one of several; empty for the first. A poor fit is not an error: `scalerl.decide(fit)` says
    where the run stands.

    >>> fit = scalerl.fit_run("runs/first")
    >>> fit.params["ceiling"], fit.interval("ceiling"), scalerl.decide(fit).state
    >>> scalerl.forecast.curves.reward_at(fit, [2 * fit.scale])
    """
    from scalerl.forecast.report.python import fit_one

    return fit_one(str(folder), evaluation_set).fit


@python_call
def read(
    path: "str | Path | Sequence[str | Path]",
    *,
    x: str | None = None,
    y: str | None = None,
    by: str | Sequence[str] = (),
    gpus: float | None = None,
    start: "float | str | None" = None,
    seed: str | None = None,
    y_scale: Literal["auto", "1", "100", "pm1", "none"] = "auto",
) -> "Runs":
    """Read logs of any trainer: files, folders, or patterns such as "logs/*.jsonl". Needs no torch.

    `x` and `y` are the columns of compute and reward, `by` those whose values are separate curves, and `seed` the one
    whose values are runs of one curve; unset, they are detected. `gpus` builds GPU-hours from the log's times.
    `start` is the reward before training: a number, "40%", or "first" for each run's first row.

    >>> runs = scalerl.read("runs.csv", x="hours", y="score", by="recipe")
    >>> runs.fit().curves[0].ceiling, runs.compare(), runs.forecast(at=100), runs.compare().to_frame()
    """
    from scalerl.forecast.report.python import read_runs

    columns = {"x": x, "y": y, "by": by, "seed": seed}
    return read_runs(path, columns, gpus=gpus, start=start, y_scale=y_scale)


def check_can_train() -> None:
    """Raise ExtraError if a package that training needs is not installed."""
    from importlib.util import find_spec

    from scalerl.errors import ExtraError

    for package in ("torch", "transformers", "safetensors", "jaxtyping"):
        if find_spec(package) is None:
            raise ExtraError(f'training needs the train extra ({package} is missing): pip install "scalerl[train]"')


def _trusting(recipe: "Recipe", trust_remote_code: bool) -> "Recipe":
    from scalerl.recipe.recipe import trusting

    return trusting(recipe, trust_remote_code=trust_remote_code)


def _path_of(given: Any, kind: str) -> str:
    """Return an import path under which this process finds the function, or a function that returns the given rows."""
    from scalerl.recipe.import_path import path_of

    if not callable(given):
        rows = list(given)
        return path_of(lambda: rows, kind)
    return path_of(given, kind)
