"""The overview of a board: everything that is watched in a table and a chart, and the settings that differ."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from scalerl.logs.names import without_seed
from scalerl.report.board.look import Look
from scalerl.report.document import Blocks, Curves, Document, Grid, Json, Say, grid, plain, say, sections, table
from scalerl.report.figures import short_names
from scalerl.report.runs import PER_RUN, settings_that_differ

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
    lines = [line for look in looks for line in look.lines]
    recipes = [f"{line['study']}/{line['arm']}" if line["study"] else without_seed(line["name"]) for line in lines]
    recipes = [f"{recipe}/{line['curve']}" for recipe, line in zip(recipes, lines, strict=True)]
    numbers = {recipe: number for number, recipe in enumerate(dict.fromkeys(recipes))}
    names = short_names([f"{line['name']}/{line['curve']}".removesuffix("/") for line in lines])[1]
    made = [
        {**line, "run": name, "colour": numbers[recipe], "alarms": line["num_alarms"] or ""}
        for line, name, recipe in zip(lines, names, recipes, strict=True)
    ]
    made.sort(key=lambda line: line["colour"])
    watched = say("watched", num=len(looks), paths=tuple(paths))
    return sections(
        ("overview", "Everything watched", [*notes, watched, *_charted(made)]),
        ("differing", "Settings that differ between the runs", [_differing(looks)]),
    )


def _charted(lines: Sequence[Json]) -> Blocks:
    """Yield the table, and the chart of the commonest unit: other units of compute cannot share its axis."""
    units = Counter(line["unit"] for line in lines if "drawn" in line)
    unit = units.most_common(1)[0][0] if units else ""
    if len(units) > 1:
        yield say("unlike_units", units=tuple(units), unit=unit)
    links = tuple(f"#run/{line['key']}" for line in lines)
    colours = tuple(line["colour"] for line in lines)
    rows = [(line,) for line in lines]
    yield table("overview", OVERVIEW_COLUMNS, rows, left=2, right=2, links=links, colours=colours)
    drawn = [line for line in lines if "drawn" in line and line["unit"] == unit]
    curves = tuple(replace(line["drawn"], name=line["run"], colour=line["colour"]) for line in drawn)
    yield Curves(key="together", drawn=curves, x_label=unit, y_label="reward") if curves else None


def _differing(looks: Sequence[Look]) -> Grid | None:
    """Return the settings that differ, a column for each recipe: runs that differ in their seed alone share one."""
    recipes: dict[str, Json] = {}
    for look in looks:
        settings = {key: value for key, value in look.settings.items() if key not in PER_RUN}
        if settings and settings not in recipes.values():
            name = without_seed(look.row["name"])
            recipes[look.row["name"] if name in recipes else name] = settings
    text = lambda value: "-" if value is None else value if isinstance(value, str) else json.dumps(value)  # noqa: E731
    rows = [(key, *map(text, plain(values))) for key, values in settings_that_differ([*recipes.values()]).items()]
    heads = ("setting", *short_names([*recipes])[1])
    return grid("differing", heads, rows, left=len(heads))
