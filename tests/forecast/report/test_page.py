"""The page and the board: HTML from Python, with no script on the page, and no words or numbers in the board's."""

import re
from dataclasses import replace
from importlib.resources import files

import pytest

from scalerl.forecast.report.document import Grid, Level, Lines, Samples, say, sections
from scalerl.forecast.report.markup import Markup, joined, tag
from scalerl.forecast.report.page import html, page
from scalerl.forecast.report.samples import sample_json

SCRIPTS = [each for each in (files("scalerl") / "assets" / "board").iterdir() if each.name.endswith(".js")]


def test_texts_are_escaped_and_elements_are_not():
    inside = tag("b", '<a href="x">', class_="say why", data_kind='"quoted"', title=None)
    assert inside == '<b class="say why" data-kind="&quot;quoted&quot;">&lt;a href=&quot;x&quot;&gt;</b>'
    assert joined(inside, "<", Markup("<br>")) == f"{inside}&lt;<br>"


def test_the_page_has_no_script():
    made = page("a", sections(("answer", "Answer", [say("no_curve_yet")])))
    assert "<script" not in made
    assert "script-src" not in made
    assert "default-src 'none'" in made


def test_links_and_colours_are_those_of_the_rows():
    block = Grid(key="k", heads=("a", "b"), rows=(("x", "1"), ("y", "2")), links=("#1", "#2"), colours=(0, 13))
    made = html(sections(("s", "", [block])))
    assert re.findall(r'class="who (c\d+)"><span class="dot"></span><a href="(#\d)">(\w)', made) == [
        ("c0", "#1", "x"), ("c1", "#2", "y"),
    ]  # fmt: skip
    assert re.findall(r'<td class="(\w*)" data-head="(\w)"', made)[:2] == [("", "a"), ("n", "b")]


def test_section_of_details_is_folded_behind_its_title():
    detail = replace(say("no_curve_yet"), level=Level.DETAIL)
    mixed, folded = (html(sections(("s", "Title", blocks))) for blocks in ([say("explain"), detail], [detail]))
    assert "<h2>Title</h2>" in mixed.partition("<details")[0]
    assert "<summary>Details</summary>" in mixed
    assert "<summary><h2>Title</h2></summary>" in folded


def test_lines_of_one_run_have_a_legend():
    chart = Lines(key="k", title="t", lines=(("one", 0, [1, 2], [0.1, None]), ("two", 1, [1, 2], [0.2, 0.3])))
    plain, named = (html(sections(("s", "", [replace(chart, has_legend=wanted)]))) for wanted in (False, True))
    assert 'class="chips"' not in plain
    assert re.findall(r'class="dot"></span>(\w+)', named) == ["one", "two"]


def test_each_sample_has_a_key_of_its_own():
    rows = [sample_json({"step": 3, "prompt": "1+1=", "completion": answer}) for answer in "23"]
    made = [html(sections(("s", "", [Samples(rows=tuple(each))]))) for each in (rows, rows[1:])]
    both, last = (re.findall(r'class="sample" data-key="([^"]+)"', each) for each in made)
    assert len(set(both)) == 2
    assert last == both[1:]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda each: each.name)
def test_scripts_hold_no_words_and_compute_nothing(script: object):
    code = re.sub(r"^//.*$|(?<=[;{}]) *//.*$", "", script.read_text(), flags=re.MULTILINE)  # type: ignore[attr-defined]
    assert not re.search(r"Math\.|toFixed|toPrecision|Number\(|toLocale", code)
    texts = re.findall(r"[\"'`]([^\"'`\n]*)[\"'`]", code)
    # Selectors, names of events and paths have no two words in a row.
    assert [each for each in texts if re.search(r"[A-Za-z]{3,} [a-z]{2,}", each) and "#" not in each] == ["use strict"]
