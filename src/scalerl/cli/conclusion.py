"""Print the conclusion of `scalerl train`: what the run has learned, with which certainty, and what to do next."""

from pathlib import Path

import typer


def conclude(out: Path, *, plots: bool) -> None:
    """Print what the run has learned, with which certainty, and what to do next; draw the curve if possible."""
    from scalerl.errors import InputError, NoCurveError
    from scalerl.forecast.curves import State
    from scalerl.forecast.logs import Selection, read
    from scalerl.forecast.report.analyse import analyse_fit
    from scalerl.forecast.report.options import FitOptions
    from scalerl.forecast.report.sections import curve_says

    if not _print_gains(out):
        return
    try:
        result = analyse_fit(read([out], Selection()), FitOptions())
    except InputError as error:
        why = (error.reason if isinstance(error, NoCurveError) else str(error)).rstrip(".")
        typer.echo(f"No curve yet: {why}. Evaluate more often (evaluation.every), or train longer.")
        return
    for curve in result.curves:
        typer.echo(" ".join(each.text for each in curve_says(curve, result)))
    first = result.curves[0]
    if first.state == State.TOO_EARLY:
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


def _print_gains(out: Path) -> bool:
    """Print the gain on each evaluation set; return whether the run made any update."""
    from scalerl.forecast.report.gain import measure_gain
    from scalerl.runfolder import store

    evals, metrics = store.read_evals(out), store.read_metrics(out)
    gains = {
        name: measure_gain([row for row in evals if row["set"] == name], metrics)
        for name in dict.fromkeys(row["set"] for row in evals)
    }
    if evals and all(row["reward"] is None for row in evals):
        typer.echo(f"The gain is unknown: the grader gave no verdict in any of {len(evals):,} evaluations.")
        return False
    for name, gain in gains.items():
        if gain is not None:
            typer.echo(gain.say(name if len(gains) > 1 else out.name).text)
    return all(gain is None or gain.kind != "no_update" for gain in gains.values())


def resumes_from(folder: Path) -> str:
    """Return a clause that says where --resume would continue; "" if there is no run to continue."""
    from scalerl.runfolder.store import is_run_folder
    from scalerl.training.run.resume import latest_step

    if not is_run_folder(folder):
        return ""
    step = latest_step(folder)
    where = "from the start" if step is None else f"from its last checkpoint, after step {step}"
    return f"; the same command with --resume continues {where}"
