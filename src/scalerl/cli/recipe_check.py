"""scalerl recipe check: another framework's recipe in our terms, and where it differs from ScaleRL."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from scalerl.cli.recipe import Json, app, print_table, show_value
from scalerl.errors import UsageError
from scalerl.store import JSON_FORMAT


@app.command("check")
def check_command(
    file: Annotated[
        Path,
        typer.Argument(
            help="verl's YAML or overrides, TRL's arguments (YAML, JSON, Python or a command), prime-rl's TOML.",
            show_default=False,
        ),
    ],
    framework: Annotated[
        str | None, typer.Option(help="trl, verl or prime-rl, where the file does not show it.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Translate another framework's recipe to ours, and list where it differs from ScaleRL with the setting to change.

    Nothing is run or imported: the file is read as text.

    [dim]scalerl recipe check verl.yaml
    scalerl recipe check train_grpo.py
    scalerl recipe check rl.toml[/dim]
    """
    from scalerl.config.peers import FRAMEWORKS, check_recipe

    chosen = next((name for name in FRAMEWORKS if name == framework), None)
    if framework is not None and chosen is None:
        raise UsageError(f"--framework {framework} is not known: give {', '.join(FRAMEWORKS)}")
    checked = check_recipe(file, chosen)
    if as_json:
        typer.echo(json.dumps({"format": JSON_FORMAT, "file": str(file), **asdict(checked)}, indent=2, default=str))
        return
    typer.echo(f"{file}: a recipe of {checked.framework}")
    rows = [
        (row.theirs, f"{show_value(row.value)}{' (default)' if row.is_default else ''}",
         f"{row.ours} = {show_value(row.our_value)}")
        for row in checked.translations
    ]  # fmt: skip
    print_table(("their setting", "value", "ours"), rows)
    typer.echo(f"{len(checked.differences)} differences from ScaleRL:")
    for number, row in enumerate(checked.differences, start=1):
        change = f"set {row.change}" if row.change else f"{checked.framework} has no setting for it"
        typer.echo(f"{number:3}. {row.ours}: {row.statement}.\n     {change[:1].upper()}{change[1:]}.")
