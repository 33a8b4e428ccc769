"""The `scalerl` command. Heavy imports happen inside the commands, so that --help is quick."""

import errno
import sys

import typer

from scalerl.cli import curves, report, study, train
from scalerl.cli.recipe import app as recipe_app

app = typer.Typer(
    name="scalerl",
    help="Predictable RL for language models: fit, forecast and compare scaling curves; train with the ScaleRL recipe.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(rich_help_panel="Predict")(curves.fit)
app.command(rich_help_panel="Predict")(curves.forecast)
app.command(rich_help_panel="Predict")(curves.backtest)
app.command(rich_help_panel="Predict")(curves.compare)
app.command(rich_help_panel="Predict")(curves.example)
app.command(hidden=True)(curves.demo)
app.command(rich_help_panel="Train")(train.train)
app.command(rich_help_panel="Train")(train.sft)
app.command("eval", rich_help_panel="Train")(train.evaluate)
app.command(rich_help_panel="Train")(train.export)
app.command(rich_help_panel="Study")(study.study)
app.command(rich_help_panel="Study")(report.report)
app.add_typer(recipe_app, name="recipe", rich_help_panel="Recipes")


@app.callback(invoke_without_command=True)
def root(version: bool = typer.Option(False, "--version", help="Print the version and leave.")) -> None:
    if version:
        from scalerl import __version__

        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """The console script: a user's mistake is a sentence and exit code 2, a run that cannot go on one and exit code 1.

    Only errors of our own classes are meant for a user. Any other is a fault in the code and keeps its traceback.
    """
    try:
        app()
    except (ValueError, RuntimeError) as error:
        if not type(error).__module__.startswith("scalerl."):
            raise
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2 if isinstance(error, ValueError) else 1)
    except OSError as error:
        # Wherever a file may be named, whoever looks for it meets this.
        if error.errno != errno.ENAMETOOLONG:
            raise
        sys.stderr.write(f"error: {error.filename}: a name this long can be no file's or folder's\n")
        sys.exit(2)
