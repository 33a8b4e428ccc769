"""The page in a real browser, from disk and without a network: it shows the document, and nothing fails."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from run_folders import write_study

from scalerl.forecast.logs import Selection
from scalerl.forecast.report.build import build_report
from scalerl.forecast.report.document import Curves, Grid, Level, says
from scalerl.forecast.report.figures import POINTS
from scalerl.forecast.report.options import FitOptions
from scalerl.forecast.report.page import page
from scalerl.forecast.report.sections import document


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = write_study(tmp_path_factory.mktemp("page") / "study", num=14)
    made = document(build_report([folder], Selection(), FitOptions()))
    (folder / "report.html").write_text(page("study", made), encoding="utf-8")
    return folder / "report.html", made


@pytest.fixture
def tab(browser: Any, written: tuple[Path, Any], request: pytest.FixtureRequest) -> Iterator[Any]:
    """The page with the network cut; whatever it asks for or complains of fails the test."""
    options = {"viewport": {"width": 1200, "height": 900}, **getattr(request, "param", {})}
    context = browser.new_context(offline=True, **options)
    tab = context.new_page()
    tab.set_default_timeout(300_000)  # other processes use this machine too
    complaints: list[str] = []
    tab.on("console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("request", lambda asked: complaints.append(asked.url) if not asked.url.startswith("file:") else None)
    tab.goto(written[0].as_uri())
    yield tab
    context.close()
    assert complaints == []


def test_page_says_what_the_document_says(tab: Any, written: tuple[Path, Any]):
    _, made = written
    assert tab.locator("p.say").all_text_contents() == [
        each.text for section in made for wanted in (False, True) for each in says([section])
        if (each.level == Level.DETAIL) == wanted
    ]  # fmt: skip
    grids = [block for section in made for wanted in (False, True) for block in section.blocks
             if isinstance(block, Grid) and (block.level == Level.DETAIL) == wanted]  # fmt: skip
    cells = [cell for each in grids for row in each.rows for cell in row]
    assert tab.locator("#report td").all_text_contents() == cells


def test_every_point_is_drawn_and_named(tab: Any, written: tuple[Path, Any]):
    _, made = written
    (block,) = [block for section in made for block in section.blocks if isinstance(block, Curves)][:1]
    titles = tab.locator('figure[data-key="curves/"] circle title').all_text_contents()
    points = [stroke for each in block.drawn for stroke in each.strokes if stroke.kind in POINTS]
    assert len(titles) == sum(len(stroke.compute) for stroke in points)
    assert all(": 0." in title for title in titles)


@pytest.mark.parametrize("tab", [{"viewport": {"width": 390, "height": 844}}], indirect=True)
def test_nothing_overflows_at_phone_width(tab: Any):
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize("tab", [{"color_scheme": "dark"}], indirect=True)
def test_dark_mode_is_dark(tab: Any):
    shade = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]"
    assert tab.evaluate(shade) < 60
