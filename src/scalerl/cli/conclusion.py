"""Print the conclusion of `scalerl train`: what the run has learned, with which certainty, and what to do next."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from scalerl.forecast.report.gain import Gain

_FEW_RIGHT = 0.05
"""A reward below which most groups have no right answer to learn from."""


def conclude(out: Path, *, plots: bool) -> None:
    """Print what the run has learned, with which certainty, and what to do next; draw the curve if possible."""
    from scalerl.errors import InputError, NoCurveError
    from scalerl.forecast.curves import State
    from scalerl.forecast.report.analyse import analyse_fit
    from scalerl.forecast.report.options import FitOptions
    from scalerl.forecast.report.run_series import run_series
    from scalerl.forecast.report.runs import read_folder
    from scalerl.forecast.report.safe_files import Root
    from scalerl.forecast.report.sections import curve_says
    from scalerl.forecast.report.sources import Source

    gains = _print_gains(out)
    if gains is None:
        return
    run = read_folder(Source(path=out, root=Root(), kind="run", name=out.resolve().name))
    try:
        if run.problem:
            raise InputError(run.problem)
        result = analyse_fit(run_series([run.evaluations]), FitOptions())
    except InputError as error:
        why = (error.reason if isinstance(error, NoCurveError) else str(error)).rstrip(".")
        typer.echo(f"No curve yet: {why}. Evaluate more often (evaluation.every), or train longer.")
        return
    for curve in result.curves:
        typer.echo(" ".join(each.text for each in curve_says(curve, result)))
    first = result.curves[0]
    if gains and all(gain.kind != "rose" for gain in gains):
        # A forecast of a run that has not risen says nothing new.
        typer.echo(_after_no_gain(max(gain.last for gain in gains)))
    elif first.state == State.TOO_EARLY:
        typer.echo("Next: the same command with --resume and a larger budget, such as --set budget.steps=N")
    else:
        typer.echo(
            f"Next: scalerl forecast {out} --at C (in {first.unit}), or train with another setting (such as --set "
            f"loss=dapo) into OTHER, then scalerl compare {out} OTHER"
        )
    if not plots:
        return
    try:
        from scalerl.forecast.report.picture import draw

        draw(result, out / "curve.png")
        typer.echo(f"Drawn: {out / 'curve.png'}")
    except InputError as error:
        typer.echo(f"Not drawn: {error}")


def _print_gains(out: Path) -> list["Gain"] | None:
    """Print the gain on each evaluation set and return those that are known; None if the run made no update."""
    from scalerl.forecast.report.gain import measure_gain
    from scalerl.runfolder import store

    evals = store.read_evals(out)
    metrics = store.read_metrics(out)
    if evals and all(row["reward"] is None for row in evals):
        typer.echo(f"The gain is unknown: the grader gave no verdict in any of {len(evals):,} evaluations.")
        return None
    names = dict.fromkeys(row["set"] for row in evals)
    gains = []
    for name in names:
        gain = measure_gain([row for row in evals if row["set"] == name], metrics)
        if gain is not None:
            typer.echo(gain.say(name if len(names) > 1 else out.name).text)
            gains.append(gain)
    if any(gain.kind == "no_update" for gain in gains):
        return None
    return gains


def _after_no_gain(reward: float) -> str:
    """Return what to do after a run whose reward did not rise."""
    if reward < _FEW_RIGHT:
        return (
            "Next: almost no answer is right, so there is little to learn from: take easier problems, or a better "
            "start (scalerl sft makes one from demonstrations); scalerl train --check shows answers with their grades"
        )
    return (
        "Next: the same command with --resume and a larger budget, such as --set budget.steps=N, or with another "
        "setting, such as optimizer.lr"
    )


def resumes_from(folder: Path) -> str:
    """Return a clause that says where --resume would continue; "" if there is no run to continue."""
    from scalerl.runfolder.store import is_run_folder
    from scalerl.training.run.resume import latest_step

    if not is_run_folder(folder):
        return ""
    step = latest_step(folder)
    where = "from the start" if step is None else f"from its last checkpoint, after step {step}"
    return f"; the same command with --resume continues {where}"
