"""What `scalerl train` prints when a run is over: what was learned, how sure that is, and what to do next."""

from pathlib import Path

import typer


def conclude(out: Path, *, plots: bool) -> None:
    """Print what was learned, how sure that is and what to try next; draw the curve if that is possible."""
    from scalerl.curves import State
    from scalerl.errors import InputError, NoCurveError
    from scalerl.logs import Selection, read
    from scalerl.report.analyse import analyse_fit
    from scalerl.report.options import FitOptions
    from scalerl.report.sections import curve_says

    if not _print_gains(out):
        return
    try:
        result = analyse_fit(read([out], Selection()), FitOptions())
    except InputError as error:
        why = (error.reason if isinstance(error, NoCurveError) else str(error)).rstrip(".")
        typer.echo(f"No curve yet: {why}. A smaller evaluation.every, or a longer run, gives one.")
        return
    for curve in result.curves:
        typer.echo(" ".join(each.text for each in curve_says(curve, result)))
    first = result.curves[0]
    if first.state == State.TOO_EARLY:
        typer.echo("Next: the same command with --resume and a larger budget, such as --set budget.steps=N")
    else:
        typer.echo(
            f"Next: scalerl forecast {out} --at C (in {first.unit}), or train with another setting (--set loss=dapo, "
            f"say) into OTHER and scalerl compare {out} OTHER"
        )
    if not plots:
        return
    try:
        from scalerl.report.picture import draw

        draw(result, out / "curve.png")
        typer.echo(f"Drawn: {out / 'curve.png'}")
    except InputError as error:
        typer.echo(f"Not drawn: {error}")


def _print_gains(out: Path) -> bool:
    """Print what each evaluation set gained; return whether the run made any update."""
    from scalerl import store
    from scalerl.report.gain import measure_gain

    evals, metrics = store.read_evals(out), store.read_metrics(out)
    gains = {
        name: measure_gain([row for row in evals if row["set"] == name], metrics)
        for name in dict.fromkeys(row["set"] for row in evals)
    }
    if evals and all(row["reward"] is None for row in evals):
        typer.echo(f"Not measured: the grader gave no verdict in any evaluation ({len(evals):,}).")
        return False
    for name, gain in gains.items():
        if gain is not None:
            typer.echo(gain.say(name if len(gains) > 1 else out.name).text)
    return all(gain is None or gain.kind != "no_update" for gain in gains.values())


def resumes_from(folder: Path) -> str:
    """Return, as a clause, where the same command with --resume would go on; "" if there is no run to go on with."""
    from scalerl.run.resume import latest_step
    from scalerl.store import is_run_folder

    if not is_run_folder(folder):
        return ""
    step = latest_step(folder)
    where = "from the start" if step is None else f"after step {step}, its last checkpoint"
    return f"; the same command with --resume goes on {where}"
