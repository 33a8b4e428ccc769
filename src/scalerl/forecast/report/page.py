"""A document as HTML: the page that opens from disk and has no script, and that a board refreshes."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any
from zlib import crc32

from scalerl import __version__
from scalerl.forecast.report.document import Block, Curves, Grid, Level, Lines, Samples, Say, Section
from scalerl.forecast.report.markup import Markup, joined, tag
from scalerl.forecast.report.svg import colour_class, curves_svg, lines_svg


def html(document: Sequence[Section]) -> Markup:
    """Return the sections; what explains them is folded away."""
    return joined(*map(_section, document))


def _section(section: Section) -> Markup:
    shown: list[Markup] = []
    details: list[Markup] = []
    for block in section.blocks:
        place = shown
        if block.level == Level.DETAIL:
            place = details
        place.append(BLOCKS[type(block)](block))
    parts: list[Markup] = []
    summary: str = "Details"
    if section.title:
        parts.append(tag("h2", section.title))
    if not shown:
        # A section of nothing but details is folded as a whole, behind its title.
        summary = joined(*parts)
        parts = []
    parts += shown
    if details:
        parts.append(tag("details", tag("summary", summary), *details, data_key=section.key))
    return tag("section", *parts, id=f"section-{section.key}")


def _say(block: Say) -> Markup:
    return tag("p", block.text, class_=f"say {block.level.value}", data_kind=block.kind)


def _grid(block: Grid) -> Markup:
    kinds = ["n" if block.is_number(place) else "" for place in range(len(block.heads))]
    heads: list[Markup] = []
    for head, kind in zip(block.heads, kinds, strict=True):
        heads.append(tag("th", head, class_=kind, scope="col"))
    rows: list[Markup] = []
    for at, row in enumerate(block.rows):
        cells: list[Markup] = []
        for text, head, kind in zip((_name(block, at), *row[1:]), block.heads, kinds, strict=True):
            cells.append(tag("td", text, class_=kind, data_head=head))
        rows.append(tag("tr", *cells))
    table = tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *rows), class_="stacks")
    if block.title:
        title = [tag("h3", block.title)]
    else:
        title = []
    return tag("div", *title, table, class_="scroll", tabindex=0, data_key=block.key)


def _name(block: Grid, at: int) -> str:
    """Return the first cell of a row, with where it leads and its colour."""
    name: str = block.rows[at][0]
    if block.links:
        name = tag("a", name, href=block.links[at])
    if block.colours:
        name = tag("span", tag("span", class_="dot"), name, class_=f"who {colour_class(block.colours[at])}")
    return name


def _samples(block: Samples) -> Markup:
    """Return what a model wrote: a summary of each sample, and its texts."""
    return joined(*map(_sample, block.rows))


def _sample(sample: Mapping[str, Any]) -> Markup:
    head: list[Markup] = []
    for name in ("run", "step_text", "label", "reward_text", "answer_text"):
        if sample.get(name):
            kind = None
            if name == "label":
                kind = f"verdict-{sample['verdict']}"
            head.append(tag("span", sample[name], class_=kind))
    texts: list[Markup] = []
    for name, text, by in sample["texts"]:
        if text:
            texts.append(tag("h4", name))
            texts.append(tag("pre", text, class_="observed" if by == "environment" else None))
    # With a key of its own it stays as it was, open or folded, while a board refreshes the page.
    key = f"sample/{crc32(repr(sample).encode())}"
    return tag("details", tag("summary", *head), *texts, class_="sample", data_key=key)


BLOCKS: dict[type[Block], Callable[[Any], Markup]] = {
    Say: _say,
    Grid: _grid,
    Curves: curves_svg,
    Lines: lines_svg,
    Samples: _samples,
}


def asset(name: str) -> str:
    return (files("scalerl") / "assets" / "report" / name).read_text(encoding="utf-8")


POLICY = (
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'\">"
)
"""What a page from disk may do: show itself."""


def page(title: str, document: Sequence[Section]) -> str:
    """Return the whole file."""
    return framed(title, html(document))


def framed(title: str, body: Markup, *, head: str = POLICY, bar: str = "", below: str = "") -> str:
    """Return a whole page; a board has its script in the head, a bar above the title, and news below it."""
    return Template(asset("page.html")).substitute(
        head=head, title=escape(title), style=asset("report.css"), bar=bar, below=below, body=body,
        words=asset("words.html"), version=escape(__version__),
    )  # fmt: skip
