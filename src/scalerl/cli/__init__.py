"""The `scalerl` command. Heavy imports happen inside the commands, so that --help is quick."""

import errno
import os
import shlex
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NoReturn

import typer

from scalerl.cli import curves, several, sft, study, train, watch
from scalerl.cli.console import PlainStream
from scalerl.cli.options import option
from scalerl.cli.recipe import app as recipe_app
from scalerl.errors import RunFailure, UserError

_REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)
"""What a file system answers without permission or room."""

app = typer.Typer(
    name="scalerl",
    help="Predict where RL of a language model levels off, compare recipes by their curves, and train with ScaleRL.",
    epilog="""Start here. Each command's --help has an example.

    [dim]scalerl example[/dim]            forecast and compare two embedded recipes
    [dim]scalerl fit LOG[/dim]            a log of your own: CSV, JSONL, TRL, wandb, ...
    [dim]scalerl compare LOG[/dim]        which of several recipes to scale
    [dim]scalerl train tiny-cpu[/dim]     train an embedded model, minutes on a CPU""",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def example(
    out: Path = option("DIR", "Folder for the data and the pictures.", default=Path("example")),
) -> None:
    """Forecast, compare and draw two real runs of agents. Each command is printed before it runs.

    [dim]scalerl example --out example[/dim]
    """
    from importlib.resources import files as resources

    from typer.main import get_command

    from scalerl.runfolder.atomic_files import new_file, write_errors

    with write_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    table = out / "runs.csv"
    with new_file(table) as unfinished:
        unfinished.write_bytes((resources("scalerl") / "assets" / "example_runs.csv").read_bytes())
    options = "--by recipe"
    for name, more in (
        ("fit", ["--at", "100"]),
        ("compare", ["--at", "100", "--plot", str(out / "example.png")]),
        ("report", ["--out", str(out)]),
    ):
        words = [str(table), *options.split(), *more]
        typer.secho(f"\n$ scalerl {name} {shlex.join(words)}", bold=True)
        get_command(app).main([name, *words], standalone_mode=False)
    typer.echo(f"\nOpen {out / 'report.html'} in a browser. Next, with a log of your own: scalerl fit YOUR_LOG")


LOOK = "Look at logs"
TRAIN = "Train"
DECIDE = "Decide"
for command, panel in (
    (curves.fit, LOOK),
    (curves.forecast, LOOK),
    (curves.compare, LOOK),
    (curves.report, LOOK),
    (watch.watch, LOOK),
    (train.train, TRAIN),
    (sft.sft, TRAIN),
    (train.export, TRAIN),
    (study.study, DECIDE),
    (several.plan, DECIDE),
):
    app.command(rich_help_panel=panel)(command)
app.command("eval", rich_help_panel=TRAIN)(train.evaluate)
app.add_typer(recipe_app, name="recipe", rich_help_panel=TRAIN)
more = typer.Typer(help="Rarer: backtest, transfer, score, example.", no_args_is_help=True)
app.add_typer(more, name="more", rich_help_panel=DECIDE)
for command in (
    curves.backtest, several.transfer, several.score, example,
):  # fmt: skip
    more.command()(command)
    app.command(hidden=True)(command)


@app.callback(invoke_without_command=True)
def root(version: bool = typer.Option(False, "--version", help="Print the version and exit.", metavar="")) -> None:
    if version:
        from scalerl import __version__

        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """The console script. A user's mistake prints a sentence and exits with 2, a run that cannot go on exits with 1.

    Any other exception is a bug and keeps its traceback.
    """
    # Before numpy is imported: the matrices of a fit are small, and threads would only wait for each other.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    out, err = (stream and PlainStream(stream) for stream in (sys.stdout, sys.stderr))  # closed ones are None
    with redirect_stdout(out), redirect_stderr(err):
        try:
            app()
        except UserError as error:
            # Errors that report several problems have a sentence for each.
            _exit(str(error).replace("\n", "\nerror: ") if hasattr(error, "problems") else str(error), code=2)
        except RunFailure as error:
            # The notes of an error of another process have its traceback.
            _exit(str(error), code=1, before="".join(getattr(error, "__notes__", ())))
        except OSError as error:
            # Any command may be given a name that is too long, or a place without permission or room.
            if error.errno == errno.ENAMETOOLONG:
                _exit(f"{error.filename}: this name is too long for a file or folder", code=2)
            if error.errno not in _REFUSED:
                raise
            from scalerl.runfolder.atomic_files import write_failure

            _exit(f"{error.filename or 'the output cannot be written'}: {write_failure(error)}", code=1)


def _exit(message: str, *, code: int, before: str = "") -> NoReturn:
    from scalerl.recipe.secrets import redact

    sys.stderr.write(redact(f"{before}error: {message}\n"))
    sys.exit(code)
