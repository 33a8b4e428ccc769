"""The page in a real browser, from disk and without a network: choices change what is shown, and nothing fails."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_folders import write_study

from scalerl.curves import Verdict, reward_at
from scalerl.logs.series import Selection
from scalerl.report import views as report_views
from scalerl.report.page import page as page_of
from scalerl.report.results import FitOptions
from scalerl.report.write import build_report, page_json


def written(path: Path, selection: Selection, shares: tuple[float, ...] = ()) -> tuple[Path, Any]:
    """Write the page on an input beside it, with these windows besides the usual ones, and tokens as a second axis."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_views, "SHARES", shares)
        patch.setattr(report_views, "_candidates", lambda tables: ["tokens"] if path.is_dir() else [])
        built = build_report([path], selection, FitOptions())
    (path.parent / "report.html").write_text(page_of(page_json(built)), encoding="utf-8")
    return path.parent / "report.html", built


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    return written(write_study(tmp_path_factory.mktemp("page") / "study", num=14), Selection(), (0.5,))


@pytest.fixture(scope="module")
def held_out_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on rows of which every fourth is held out, in the middle of the others too."""
    folder = tmp_path_factory.mktemp("held-out")
    rows = [(0.1 * step, 0.3 + 0.3 / (1 + (1.0 / (0.1 * step)) ** 2), step % 4 == 0) for step in range(1, 41)]
    lines = [f"{hours:.2f},{reward:.4f},{'test' if held else 'fit'}" for hours, reward, held in rows]
    (folder / "log.csv").write_text("\n".join(["gpu_hours,reward,split", *lines]))
    return written(folder / "log.csv", Selection(holdout=("split", "test")))[0]


@pytest.fixture
def opened(browser: Any, report: tuple[Path, Any], request: pytest.FixtureRequest) -> Iterator[Any]:
    """The page with the network cut; whatever it asks for or complains of fails the test."""
    options = {"viewport": {"width": 1200, "height": 900}, **getattr(request, "param", {})}
    context = browser.new_context(offline=True, **options)
    tab = context.new_page()
    complaints: list[str] = []
    tab.on("console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("request", lambda asked: complaints.append(asked.url) if not asked.url.startswith("file:") else None)
    tab.goto(report[0].as_uri())
    yield tab
    context.close()
    assert complaints == []


def forecast(tab: Any, curve: str) -> tuple[float, float, float]:
    row = tab.locator(f'#forecast li[data-curve="{curve}"]')
    low, high = row.locator(".range span").first.inner_text().split(" to ")
    return float(row.locator(".value").inner_text()), float(low), float(high)


def test_forecasts_and_bands_are_nearly_those_of_python(opened: Any, report: tuple[Path, Any]):
    done = report[1].view().analysis.curves[0].fit
    (content,) = reward_at(done, [2 * done.scale])
    width = content.reward.high - content.reward.low
    # The ends are quantiles of 2,000 draws, which differ with the places that are asked for together.
    assert forecast(opened, "base") == pytest.approx(
        (content.reward.value, content.reward.low, content.reward.high), abs=0.05 * width + 0.001
    )
    for times in (1 / 16, 0.3, 0.9, 1.4, 3.0, 11.0, 16.0):
        (content,) = reward_at(done, [times * done.scale])
        shown = opened.evaluate(f"forecastAt(shown.theView().curves[0], {times * done.scale!r})")
        ends, width = (content.reward.low, content.reward.high), content.reward.high - content.reward.low
        assert shown["value"] == pytest.approx(content.reward.value, abs=0.02 * width)
        assert (shown["low"], shown["high"]) == pytest.approx(ends, abs=0.05 * width)
    for times in (0.2, 1.0, 3.0):
        low, high = (float(end[0]) for end in done.curve_interval(times * done.scale))
        shown = opened.evaluate(f"curveInterval(shown.theView().curves[0], {times * done.scale!r})")
        assert shown == pytest.approx([low, high], abs=0.02 * (high - low))


def test_a_curve_can_be_hidden_and_shown_again(opened: Any):
    chip = opened.locator('#chips button[data-curve="lower"]')
    marks = opened.locator("#curves svg circle")
    before = marks.count()
    chip.click()
    assert chip.get_attribute("aria-pressed") == "false"
    assert opened.locator('#forecast li[data-curve="lower"]').count() == 0
    assert marks.count() < before
    chip.click()
    assert marks.count() == before


def test_axis_window_and_target_change_the_forecast(opened: Any):
    at_first = forecast(opened, "base")
    opened.locator("#window button", has_text="first 50%").click()
    half = forecast(opened, "base")
    assert half != at_first
    assert half[2] - half[1] > at_first[2] - at_first[1]
    opened.locator("#window button", has_text="all points").click()
    opened.locator("#axis button", has_text="tokens").click()
    assert "tokens" in opened.locator("#forecast h3").inner_text()
    assert opened.locator("#results th", has_text="C_mid, tokens").count() == 1
    opened.locator("#axis button", has_text="CPU-hours").click()
    assert forecast(opened, "base") == at_first
    opened.locator("#target").fill("100")
    early = forecast(opened, "base")
    assert early[0] < at_first[0] - 0.02
    opened.locator("#curves svg").click(position={"x": 500, "y": 200})
    assert forecast(opened, "base")[0] > early[0]


def test_a_window_that_was_not_fitted_on_an_axis_cannot_be_chosen(
    opened: Any, report: tuple[Path, Any], tmp_path: Path
):
    content = page_json(report[1])
    content["views"] = [view for view in content["views"] if (view["axis"], view["window"]) != ("tokens", "50%")]
    (tmp_path / "report.html").write_text(page_of(content), encoding="utf-8")
    opened.goto((tmp_path / "report.html").as_uri())
    half, every = (opened.locator("#window button", has_text=text) for text in ("first 50%", "all points"))
    half.click()
    opened.locator("#axis button", has_text="tokens").click()
    assert half.is_disabled()
    assert every.get_attribute("aria-pressed") == "true"
    opened.locator("#axis button", has_text="CPU-hours").click()
    assert half.is_enabled()


def test_held_out_rows_are_hollow_until_they_are_fitted(opened: Any, held_out_page: Path):
    opened.goto(held_out_page.as_uri())
    filled, hollow = (
        opened.locator(f"#curves svg circle{style}") for style in ("[fill-opacity]", '[fill="var(--paper)"]')
    )
    assert (filled.count(), hollow.count()) == (30, 10)
    opened.locator("#window button", has_text="all points").click()
    assert (filled.count(), hollow.count()) == (40, 0)


def test_numbers_are_written_one_way_and_exact_under_the_pointer(opened: Any):
    texts = opened.evaluate("[2e11, 1e12, 3.36e12, 4e8, 2e5, 750, 0.02, 1e-5, 0].map((value) => computeText(value))")
    assert texts == ["2\u00d710\u00b9\u00b9", "10\u00b9\u00b2", "3.36\u00d710\u00b9\u00b2", "400M", "200k", "750",
                     "0.02", "10\u207b\u2075", "0"]  # fmt: skip
    ranges = opened.evaluate("[{ low: 0.5, high: 0.6 }, { low: 299, high: null }].map((value) => rangeText(value))")
    assert ranges == ["0.500 to 0.600", "more than 299"]
    opened.locator("#curves svg").hover(position={"x": 300, "y": 30})
    shown = opened.locator("#curves .tip").inner_text()
    assert "base" in shown
    assert "[" in shown
    there, back = opened.evaluate(
        "[shown.pairWith(shown.theView(), 'base', 'lower'), shown.pairWith(shown.theView(), 'lower', 'base')]"
    )
    assert back["p_higher_ceiling"] == pytest.approx(1 - there["p_higher_ceiling"])
    ratio, inverse = there["target"]["compute_ratio"], back["target"]["compute_ratio"]
    assert inverse["high"] == pytest.approx(1 / ratio["low"])
    assert inverse["low"] == pytest.approx(0 if ratio["high"] is None else 1 / ratio["high"])


@pytest.mark.parametrize("opened", [{"viewport": {"width": 390, "height": 844}}], indirect=True)
def test_nothing_overflows_at_phone_width(opened: Any, tmp_path: Path):
    assert opened.evaluate("document.documentElement.scrollWidth") <= 390
    texts = "[...document.querySelectorAll('p, li, td, svg text')]"
    sizes = opened.evaluate(f"{texts}.map((one) => parseFloat(getComputedStyle(one).fontSize))")
    assert min(sizes) >= 11
    assert len(opened.screenshot(path=tmp_path / "phone.png", full_page=True)) > 10_000


@pytest.mark.parametrize("opened", [{"color_scheme": "dark"}], indirect=True)
def test_dark_mode_is_dark_and_legible_and_paper_white(opened: Any):
    def looks() -> dict[str, str]:
        of = {"page": ("body", "backgroundColor"), "ink": ("body", "color"), "text": ("#curves svg text", "fill")}
        return {key: opened.evaluate(f"getComputedStyle(document.querySelector('{where}')).{what}")
                for key, (where, what) in {**of, "grid": ("svg .grid", "stroke")}.items()}  # fmt: skip

    assert looks() == {
        "page": "rgb(20, 23, 26)", "ink": "rgb(232, 234, 237)", "text": "rgb(169, 177, 186)", "grid": "rgb(37, 42, 48)",
    }  # fmt: skip
    opened.emulate_media(media="print", color_scheme="dark")
    opened.evaluate("document.documentElement.style.colorScheme = 'dark'")  # the button of the page
    assert looks() == {
        "page": "rgb(255, 255, 255)", "ink": "rgb(0, 0, 0)", "text": "rgb(68, 68, 68)", "grid": "rgb(236, 238, 240)",
    }  # fmt: skip


def test_on_paper_every_section_is_there_and_no_control(opened: Any, tmp_path: Path):
    assert not opened.locator("#pairs-table").is_visible()
    opened.emulate_media(media="print")
    for gone in (".controls", "#theme", "span.on-screen"):
        assert not opened.locator(gone).is_visible()
    sections = opened.locator("main section:not([hidden]) > h2")
    assert sections.count() >= 6
    assert all(sections.nth(at).is_visible() for at in range(sections.count()))
    for shown in ("#summary", "#forecast", "#pairs-table", "#shown", "#scores"):
        assert opened.locator(shown).is_visible(), shown
    assert "fitted on: all points" in opened.locator("#shown").inner_text()
    # Dots tell curves apart, and are backgrounds, which paper goes without unless told.
    assert opened.evaluate("getComputedStyle(document.querySelector('.dot')).printColorAdjust") == "exact"
    # A4 at 96 dots an inch; what is wider would be shrunk or cut off.
    opened.set_viewport_size({"width": 794, "height": 1123})
    assert opened.evaluate("document.documentElement.scrollWidth") <= 794
    opened.pdf(path=tmp_path / "paper.pdf")


@pytest.fixture(scope="module")
def long_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three arms with long names: one past its peak, one with more rewards than can be told apart, one sigmoid."""
    folder = tmp_path_factory.mktemp("long")
    rng = np.random.default_rng(0)
    rows = []
    for arm, num in (("fallen", 60), ("many-rewards", 900), ("sigmoid", 40)):
        compute = np.linspace(1 / num, 1, num)
        rise = 0.3 / (1 + (0.2 / compute) ** 2)
        if arm == "fallen":
            rise -= 0.2 * np.clip(compute - 0.6, 0.0, None) / 0.4
        noise = 0.05 if arm == "many-rewards" else 0.004
        rewards = 0.2 + rise + noise * rng.standard_normal(num)
        name = f"a-long-name-of-an-arm-with-settings-lr=1e-6-kl=0.001-{arm}"
        rows += [f"{100 * x},{y},{name}" for x, y in zip(compute, rewards.clip(0, 1), strict=True)]
    (folder / "log.csv").write_text("\n".join(["gpu_hours,reward,arm", *rows]))
    return written(folder / "log.csv", Selection(by=("arm",)))[0]


@pytest.mark.parametrize("opened", [{"viewport": {"width": 1280, "height": 900}}], indirect=True)
def test_verdicts_and_compute_ratios_are_visible(opened: Any, long_page: Path):
    opened.goto(long_page.as_uri())
    badges = opened.locator("#results .badge.warn")
    assert Verdict.FALLEN in [badges.nth(at).inner_text() for at in range(badges.count())]
    assert opened.locator("#residuals svg circle").count() > 100
    sizes = opened.evaluate(
        "[...document.querySelectorAll('#results .scroll')].map((e) => [e.scrollWidth, e.clientWidth])"
    )
    assert all(inner <= outer for inner, outer in sizes)
    assert opened.locator("#results td.verdict").first.is_visible()
    assert opened.locator("#results th", has_text="compute ratio").is_visible()
    # Many points are bins, and the page is small.
    points = opened.evaluate(
        "Object.values(shown.theSet().points[shown.state.axis]).map((p) => [p.num_points, p.compute.length])"
    )
    assert sorted(num for num, _ in points) == [40, 60, 900]
    assert all(drawn <= 75 for _, drawn in points)
    assert long_page.stat().st_size < 300_000
