"""The overview of a board: everything that is watched in a table and a chart, and the settings that differ."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from scalerl.logs.names import without_seed
from scalerl.report.board.look import Look
from scalerl.report.document import Blocks, Curves, Document, Grid, Json, Say, grid, plain, say, sections, table
from scalerl.report.figures import short_names
from scalerl.report.runs import settings_that_differ

OVERVIEW_COLUMNS = {
    "run": "{run}",
    "status": "{status}",
    "step": "{step}",
    "reward": "{reward}",
    "at the end": "{end}",
    "ceiling": "{ceiling}",
    "alarms": "{alarms}",
    "state": "{state}",
    "what to do": "{do}",
}
"""Columns of the overview, with the value of a line that each shows."""


def overview(looks: Sequence[Look], notes: Sequence[Say], paths: Sequence[str]) -> Document:
    """Return all runs and logs in a table and a chart, one colour for each recipe, and the settings that differ."""
    lines = [line for look in looks for line in _lines(look)]
    recipes = [f"{_recipe(line)}/{line['curve']}" for line in lines]
    numbers = {recipe: number for number, recipe in enumerate(dict.fromkeys(recipes))}
    names = short_names([f"{line['log']}/{line['curve']}".removesuffix("/") for line in lines])[1]
    for line, name, recipe in zip(lines, names, recipes, strict=True):
        line |= {"run": name, "colour": numbers[recipe], "alarms": line["num_alarms"] or ""}
    watched = say("watched", num=len(looks), paths=tuple(paths))
    return sections(
        ("overview", "Everything watched", [*notes, watched, *_charted(lines)]),
        ("differing", "Settings that differ between the runs", [_differing(looks)]),
    )


def _recipe(line: Json) -> str:
    return f"{line['study']}/{line['arm']}" if line["study"] else without_seed(line["log"])


def _charted(lines: Sequence[Json]) -> Blocks:
    """Yield the table, and the chart of the commonest unit: other units of compute cannot share its axis."""
    units = Counter(line["unit"] for line in lines if line["drawn"] is not None)
    unit = units.most_common(1)[0][0] if units else ""
    if len(units) > 1:
        yield say("unlike_units", units=tuple(units), unit=unit)
    ordered = sorted(lines, key=lambda line: line["colour"])
    links = tuple(f"#run/{line['key']}" for line in ordered)
    colours = tuple(line["colour"] for line in ordered)
    rows = [(line,) for line in ordered]
    yield table("overview", OVERVIEW_COLUMNS, rows, left=2, right=2, links=links, colours=colours)
    drawn = tuple(
        replace(line["drawn"], name=line["run"], colour=line["colour"])
        for line in lines
        if line["drawn"] is not None and line["unit"] == unit
    )
    yield Curves(key="together", drawn=drawn, x_label=unit, y_label="reward") if drawn else None


def _differing(looks: Sequence[Look]) -> Grid | None:
    recipes = {look.row["name"]: look.settings for look in looks if look.settings}
    text = lambda value: "-" if value is None else value if isinstance(value, str) else json.dumps(value)  # noqa: E731
    rows = [(key, *map(text, plain(values))) for key, values in settings_that_differ([*recipes.values()]).items()]
    return grid("differing", ("setting", *recipes), rows, left=1 + len(recipes))


def _lines(look: Look) -> Iterator[Json]:
    """Yield a line of the overview for each curve of a run or log, and one line if it has no curve."""
    nothing: Json = dict.fromkeys(("reward", "end", "ceiling", "state", "do", "unit"), "")
    curves: list[Json] = look.row["curves"] or [nothing]
    for curve, drawn in zip(curves, look.drawn or [None], strict=True):
        several = {"curve": curve["name"], "step": curve["step"]} if len(curves) > 1 else {}
        own = several or {"curve": "", "step": look.row["step"]}
        yield {**look.row, **curve, **own, "log": look.row["name"], "drawn": drawn}
