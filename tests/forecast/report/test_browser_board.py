"""The board in a real browser: it grows without a reload, recovers, and runs nothing that a model has written."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from boards import GrowingRun, ServedBoard
from run_folders import write_study
from until import wait_until

HOSTILE = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>"
CIRCLES = """ "figure[data-key^='curves/'] circle" """
SLOW = 300_000  # other processes use this machine too


@pytest.fixture
def open_page(browser: Any) -> Iterator[Any]:
    """Opens an address in a tab of its own; what the page complains of, or asks of other machines, fails the test."""
    contexts, complaints = [], []

    def opened(link: str, **options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        contexts.append(context)
        tab = context.new_page()
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("console", lambda line: complaints.append(line.text) if "Content Security" in line.text else None)
        tab.on("request", lambda asked: complaints.append(asked.url) if "//127.0.0.1:" not in asked.url else None)
        tab.set_default_timeout(SLOW)
        tab.goto(link)
        return tab

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("watched")


@pytest.fixture(scope="module")
def board(watched: Path) -> Iterator[ServedBoard]:
    with ServedBoard(watched) as served:
        yield served


@pytest.fixture
def run(watched: Path, request: pytest.FixtureRequest) -> GrowingRun:
    """A run of its own for each test, named after it."""
    return grown(watched / request.node.name.partition("[")[0].removeprefix("test_")[:20], num=6)


def grown(folder: Path, num: int) -> GrowingRun:
    run = GrowingRun(folder)
    grow(run, num)
    return run


def grow(run: GrowingRun, num: int) -> None:
    for _ in range(num):
        run.train(10)
        run.evaluate()


def link_to(board: ServedBoard, run: GrowingRun) -> str:
    """Return the address of a run's page; that of a single run is the overview."""
    wait_until(lambda: run.folder.name in board.runs())
    return f"{board.link}{board.runs()[run.folder.name]}"


def until(tab: Any, condition: str) -> None:
    """Wait for a condition. Playwright's own wait evaluates a string in the page, which the page forbids."""
    wait_until(lambda: tab.evaluate(condition))


def followed(tab: Any, place: str) -> None:
    """Click on what leads to another page, and wait for that."""
    with tab.expect_navigation():
        tab.locator(place).click()


def num_points(tab: Any) -> int:
    return tab.locator("figure[data-key^='curves/'] circle").count()


def test_curve_grows_without_a_reload(open_page: Any, board: ServedBoard, run: GrowingRun):
    tab = open_page(link_to(board, run))
    tab.wait_for_selector("figure[data-key^='curves/'] circle")
    tab.evaluate("window.mark = 'same page'")
    tab.wait_for_selector("path.forecast", state="attached")
    before = num_points(tab)
    grow(run, 6)
    until(tab, f"document.querySelectorAll({CIRCLES}).length >= {before + 6}")
    assert tab.locator("p.say[data-kind='doubling']").count() == 1
    assert tab.locator("figure[data-key='loss/entropy'] > svg").count() == 1
    assert tab.evaluate("window.mark") == "same page"
    tab.set_viewport_size({"width": 360, "height": 740})
    until(tab, "document.documentElement.scrollWidth <= window.innerWidth")


def test_other_columns_are_folded_away_and_stay_open(open_page: Any, board: ServedBoard, run: GrowingRun):
    tab = open_page(link_to(board, run))
    tab.wait_for_selector("figure[data-key='time/push_s']", state="attached")
    tab.locator("details[data-key=health] > summary").click()
    assert tab.locator("figure[data-key='time/push_s']").is_visible()
    assert tab.locator("figure[data-key^='pass/'] > svg").count() == 1
    before = num_points(tab)
    grow(run, 3)
    until(tab, f"document.querySelectorAll({CIRCLES}).length >= {before + 3}")
    assert tab.locator("figure[data-key='time/push_s']").is_visible()
    if folder := os.environ.get("SHOTS"):
        tab.screenshot(path=f"{folder}/board.png", full_page=True)


def test_collapse_raises_an_alarm_with_its_beginning(open_page: Any, board: ServedBoard, run: GrowingRun):
    tab = open_page(link_to(board, run))
    tab.wait_for_selector("p.say")
    grow(run, 6)
    for _ in range(10):
        run.train(10, **{"rollout/truncated_frac": 0.5, "loss/entropy": 0.0001})
        run.evaluate(0.05)
    for kind in ("truncated", "entropy"):
        tab.wait_for_selector(f"p.say.warning[data-kind='alarm_{kind}']")
    assert tab.locator("#announce").inner_text()
    wait_until(lambda: re.search(r'data-head="alarms">2<', board.page()))


@pytest.mark.slow
def test_page_recovers_when_the_server_is_restarted(open_page: Any, run: GrowingRun):
    with ServedBoard(run.folder) as board:
        port, tab = board.port, open_page(board.link)
        tab.wait_for_selector("figure[data-key^='curves/'] circle")
        until(tab, "document.getElementById('connection').dataset.state === 'live'")
        before = num_points(tab)
    until(tab, "document.getElementById('connection').dataset.state === 'lost'")
    grow(run, 1)
    with ServedBoard(run.folder, options=("--port", str(port))):
        until(tab, "document.getElementById('connection').dataset.state === 'live'")
        until(tab, f"document.querySelectorAll({CIRCLES}).length > {before}")
        assert num_points(tab) > before


def test_hostile_names_and_samples_stay_text(open_page: Any, board: ServedBoard, watched: Path):
    folder = watched / HOSTILE.replace("/", "_")
    run = grown(folder, num=5)
    (folder / "status.json").write_text(json.dumps({"status": "failed", "reason": HOSTILE}))
    run.sample(HOSTILE, HOSTILE, answer=HOSTILE, grader=HOSTILE)
    write_study(watched / "study", num=5, plan={"name": HOSTILE})
    tab = open_page(board.link)
    tab.wait_for_selector("[data-key=overview] tr:has-text('onerror')")
    link = tab.locator("[data-key=overview] a", has_text=HOSTILE.replace("/", "_")).first
    link.click()
    tab.wait_for_selector(".sample")
    assert HOSTILE in tab.locator(".sample pre").nth(1).text_content()
    assert HOSTILE in tab.locator(".head").first.inner_text()
    tab.locator("text=Overview").click()
    tab.locator("[data-key=overview] a", has_text=f"study {HOSTILE}").click()
    tab.wait_for_selector("[data-key=standings]")
    assert tab.locator("main img, main script, header img").count() == 0
    assert tab.evaluate("window.hacked") is None


def test_what_can_be_clicked_is_named(open_page: Any, board: ServedBoard, watched: Path):
    for name in ("clicked-first", "clicked-second"):
        grown(watched / name, num=5).sample("1+1", "2")
    unnamed = (
        "[...document.querySelectorAll('button, a, input:not([type=hidden]), select')].filter((e) => "
        "!(e.textContent.trim() || e.getAttribute('aria-label') || (e.labels && e.labels.length))).length"
    )
    wait_until(lambda: {"clicked-first", "clicked-second"} <= board.runs().keys())
    tab = open_page(board.link)
    tab.wait_for_selector("[data-key=overview] a:has-text('clicked-second')")
    assert tab.evaluate(unnamed) == 0
    tab.locator("[data-key=overview] a:has-text('clicked-first')").first.click()
    until(tab, "document.querySelector('h1')?.textContent === 'clicked-first'")
    tab.wait_for_selector("figure[data-key^='curves/'] svg[aria-label]")
    tab.wait_for_selector(".sample")
    assert tab.evaluate(unnamed) == 0


@pytest.mark.slow
def test_many_tabs_are_live(open_page: Any, board: ServedBoard, run: GrowingRun):
    link, first = link_to(board, run), open_page(link_to(board, run))
    tabs = [first, *(first.context.new_page() for _ in range(99))]
    for tab in tabs[1:]:
        tab.goto(link, timeout=SLOW)
    for tab in tabs:
        tab.wait_for_selector("figure[data-key^='curves/'] circle", timeout=SLOW)
        until(tab, "document.getElementById('connection').dataset.state === 'live'")
