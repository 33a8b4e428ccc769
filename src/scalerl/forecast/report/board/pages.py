"""The pages of the board: the report's own page of a run or study, and an overview of all."""

import time
from collections.abc import Sequence
from typing import Any

from scalerl.forecast.report.board.look import Look
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


def overview_page(looks: Sequence[Look], notes: Sequence[Say], paths: Sequence[str]) -> str:
    """Return all runs, logs and studies in a table, and everything together where that is compared."""
    followed = [look for look in looks if look.source.kind != "all"]
    together: Document = next((look.document for look in looks if look.source.kind == "all"), ())
    return _live("scalerl watch", html((*overview(followed, notes, paths), *together)))


def overview(looks: Sequence[Look], notes: Sequence[Say], paths: Sequence[str]) -> Document:
    """Return a table with a line for each curve, and one for a study or a run without a curve."""
    lines = [(look, line) for look in looks for line in look.lines]
    names = short_names([f"{line['name']}/{line['curve']}".removesuffix("/") for _, line in lines])[1]
    rows: list[tuple[Any, ...]] = []
    empty = dict.fromkeys((*OVERVIEW_COLUMNS, "end", "do"), "")
    for (look, line), name in zip(lines, names, strict=True):
        is_study = look.source.kind == "study"
        shown = {"run": f"study {name}" if is_study else name, "status": look.status, "alarms": look.num_alarms or ""}
        rows.append((shown, line, empty))
    links = tuple(look.source.key for look, _ in lines)
    watched = say("watched", num=len(looks), paths=tuple(paths))
    made = table("overview", OVERVIEW_COLUMNS, rows, left=2, right=2, links=links)
    return sections(("overview", "Everything watched", [*notes, watched, made]))


def source_page(look: Look) -> str:
    """Return the page of a run, a log or a study: the report on it."""
    source = look.source
    if source.kind not in ("run", "log"):
        return _live(source.name, html(look.document))
    kind = look.format if look.status == "log" else look.status
    changed = time.strftime("%H:%M:%S", time.localtime(look.updated_at))
    texts = [f"{kind}: {look.reason}" if look.reason else kind, look.step, f"changed at {changed}"]
    parts = [tag("span", class_=f"state {look.status}", aria_hidden="true")]
    parts += [tag("span", text) for text in texts if text]
    return _live(source.name, html(look.document), tag("p", *parts, class_="head"))


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
