"""What the board shows as HTML: the list of runs, the overview, the page of a run or study, and found samples."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scalerl.forecast.report.board.look import Look
from scalerl.forecast.report.document import Document, Json, Say, say, sections, table
from scalerl.forecast.report.figures import short_names
from scalerl.forecast.report.markup import Markup, joined, tag
from scalerl.forecast.report.page import html, samples_html

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
    """Return all runs and logs in a table, a line for each curve."""
    lines = [line for look in looks for line in look.lines]
    names = short_names([f"{line['name']}/{line['curve']}".removesuffix("/") for line in lines])[1]
    rows = [({"run": name, "alarms": line["num_alarms"] or ""}, line) for name, line in zip(names, lines, strict=True)]
    links = tuple(f"#run/{line['key']}" for line in lines)
    watched = say("watched", num=len(looks), paths=tuple(paths))
    made = table("overview", OVERVIEW_COLUMNS, rows, left=2, right=2, links=links)
    return sections(("overview", "Everything watched", [*notes, watched, made]))


def navigation(runs: Sequence[Json], studies: Sequence[Json]) -> Markup:
    """Return the list of runs: those of each study below its name."""
    alone = [_link(f"#run/{row['key']}", row["name"], row) for row in runs if not row["study"]]
    parts = [tag("ul", _link("#", "Overview", {}), *alone)]
    for study in studies:
        own = [
            _link(f"#run/{row['key']}", f"{row['arm']}, seed {row['seed']}", row)
            for row in runs
            if row["study"] == study["key"]
        ]
        parts += [tag("h3", tag("a", f"Study {study['name']}", href=f"#study/{study['key']}")), tag("ul", *own)]
    return joined(*parts)


def _link(address: str, name: str, row: Mapping[str, Any]) -> Markup:
    state = tag("span", class_=f"state {row.get('status', '')}", title=row.get("status"))
    alarms = [tag("span", tag("span", "alarms: ", class_="unseen"), row["num_alarms"], class_="count")] if row.get(
        "num_alarms") else []  # fmt: skip
    return tag("li", tag("a", state, tag("span", name, class_="label", title=name), *alarms, href=address))


def article(look: Look) -> Markup:
    """Return the page of a run, a log or a study."""
    row, head = look.row, []
    if row["kind"] in ("run", "log"):
        kind = row["format"] if row["status"] == "log" else row["status"]
        changed = time.strftime("%H:%M:%S", time.localtime(row["updated_at"]))
        texts = [": ".join(filter(None, (kind, row["reason"]))), row["step"], f"changed at {changed}"]
        state = tag("span", class_=f"state {row['status']}", aria_hidden="true")
        head = [tag("p", state, *(tag("span", text) for text in texts if text), class_="head")]
    return tag("article", tag("h1", row["name"]), *head, html(look.document), data_samples=look.num_samples)


def found_samples(found: Json) -> Markup:
    """Return a page of samples, each with a way to the others of its problem, and one to those before them."""
    rows: Iterable[Json] = found["samples"]
    cards = [
        tag("div", samples_html([row], is_open=True),
            tag("button", "This prompt over training", type="button", class_="plain", data_problem=row["problem"]))
        for row in rows
    ]  # fmt: skip
    more = found["next"]
    older = [] if more is None else [tag("button", "Older samples", type="button", class_="plain", data_before=more)]
    return joined(*cards, tag("p", found["status"], class_="sub", role="status"), *older)
