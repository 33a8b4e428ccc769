"""The pages of the board: the report's own page of a run or study, and an overview of all."""

import time
from collections.abc import Sequence
from typing import Any

from scalerl.forecast.report.board.snapshot import Snapshot
from scalerl.forecast.report.document import Document, Say, say, sections, table
from scalerl.forecast.report.figures import short_names
from scalerl.forecast.report.markup import Markup, tag
from scalerl.forecast.report.page import framed, html

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
SCRIPT = '<script defer src="/assets/refresh.js"></script>\n<link rel="icon" href="/assets/icon.svg">'
STATES = {
    "waiting": "connecting",
    "live": "live",
    "lost": "not connected: trying again",
    "old": "this link is out of date: open the new one",
}
"""What a page says of its connection, by the state that its script finds."""


def overview_page(snapshots: Sequence[Snapshot], notes: Sequence[Say], paths: Sequence[str]) -> str:
    """Return all runs, logs and studies in a table, and everything together where that is compared."""
    followed: list[Snapshot] = []
    together: Document = ()
    for snapshot in snapshots:
        if snapshot.source.kind == "all":
            together = snapshot.document
        else:
            followed.append(snapshot)
    return _live("scalerl watch", html((*overview(followed, notes, paths), *together)))


def overview(snapshots: Sequence[Snapshot], notes: Sequence[Say], paths: Sequence[str]) -> Document:
    """Return a table with a line for each curve, and one for a study or a run without a curve."""
    of_runs: list[str] = []
    for snapshot in snapshots:
        if snapshot.source.kind != "study":
            of_runs += [f"{line['name']}/{line['curve']}".removesuffix("/") for line in snapshot.lines]
    names = iter(short_names(of_runs)[1])
    empty = dict.fromkeys((*OVERVIEW_COLUMNS, "end", "do"), "")
    rows: list[tuple[Any, ...]] = []
    links: list[str] = []
    for snapshot in snapshots:
        for line in snapshot.lines:
            if snapshot.source.kind == "study":
                name = f"study {line['name']}"
            else:
                name = next(names)
            links.append(snapshot.source.key)
            rows.append(({"run": name, "alarms": snapshot.num_alarms or ""}, line, snapshot, empty))
    watched = say("watched", num=len(snapshots), paths=tuple(paths))
    made = table("overview", OVERVIEW_COLUMNS, rows, left=2, right=2, links=tuple(links))
    return sections(("overview", "Everything watched", [*notes, watched, made]))


def source_page(snapshot: Snapshot) -> str:
    """Return the page of a run, a log or a study: the report on it."""
    source = snapshot.source
    if source.kind not in ("run", "log"):
        return _live(source.name, html(snapshot.document))
    changed = time.strftime("%H:%M:%S", time.localtime(snapshot.updated_at))
    parts = [tag("span", class_=f"state {snapshot.status}", aria_hidden="true")]
    for text in (snapshot.state, snapshot.step, f"changed at {changed}"):
        if text:
            parts.append(tag("span", text))
    return _live(source.name, html(snapshot.document), tag("p", *parts, class_="head"))


def _live(title: str, body: Markup, below: str = "") -> str:
    """Return a page of the board that is brought up to date."""
    states = [tag("span", text, class_=state) for state, text in STATES.items()]
    bar = tag(
        "div",
        tag("a", "Overview", href="./"),
        tag("span", *states, id="connection", class_="badge", role="status", data_state="waiting"),
        tag("span", id="announce", class_="unseen", aria_live="polite"),
        class_="bar",
    )
    return framed(title, body, head=SCRIPT, bar=bar, below=below)
