"""A document as HTML: the page that opens from disk and has no script, and that a board refreshes."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

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
        place = details if block.level == Level.DETAIL else shown
        place.append(BLOCKS[type(block)](block))
    title = [tag("h2", section.title)] if section.title else []
    # A section of nothing but details is folded as a whole, behind its title.
    head, summary = (title, "Details") if shown else ([], joined(*title))
    folded = [tag("details", tag("summary", summary), *details, data_key=section.key)] if details else []
    return tag("section", *head, *shown, *folded, id=f"section-{section.key}")


def _say(block: Say) -> Markup:
    return tag("p", block.text, class_=f"say {block.level.value}", data_kind=block.kind)


def _grid(block: Grid) -> Markup:
    kinds = ["n" if block.is_number(place) else "" for place in range(len(block.heads))]
    heads = [tag("th", head, class_=kind, scope="col") for head, kind in zip(block.heads, kinds, strict=True)]
    rows = []
    for at, (first, *cells) in enumerate(block.rows):
        name = tag("a", first, href=block.links[at]) if block.links else first
        if block.colours:
            name = tag("span", tag("span", class_="dot"), name, class_=f"who {colour_class(block.colours[at])}")
        texts = zip((name, *cells), block.heads, kinds, strict=True)
        rows.append(tag("tr", *(tag("td", text, class_=kind, data_head=head) for text, head, kind in texts)))
    table = tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *rows), class_="stacks")
    title = [tag("h3", block.title)] if block.title else []
    return tag("div", *title, table, class_="scroll", tabindex=0, data_key=block.key)


def _samples(block: Samples) -> Markup:
    """Return what a model wrote: a summary of each sample, and its texts."""
    return joined(*map(_sample, block.rows))


def _sample(sample: Mapping[str, Any]) -> Markup:
    head = [tag("span", text) for text in (sample.get("run"), sample["step_text"]) if text]
    head.append(tag("span", sample["label"], class_=f"verdict-{sample['verdict']}"))
    head += [tag("span", text) for text in (sample["reward_text"], sample["answer_text"]) if text]
    texts: list[Markup] = []
    for name, text, by in sample["texts"]:
        if text:
            texts.append(tag("h4", name))
            texts.append(tag("pre", text, class_="observed" if by == "environment" else None))
    return tag("details", tag("summary", *head), *texts, class_="sample")


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
