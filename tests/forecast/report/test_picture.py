"""The numbers a figure shows, and that the files are written; not the pixels."""

import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from simulate import broken, series, sigmoid

from scalerl.errors import InputError
from scalerl.forecast.curves import State
from scalerl.forecast.logs.series import Series
from scalerl.forecast.logs.written import amount_text
from scalerl.forecast.report import figures
from scalerl.forecast.report.analyse import analyse_compare, analyse_fit, analyse_forecast
from scalerl.forecast.report.document import Curves
from scalerl.forecast.report.figures import chart, compute_ticks, even_ticks, limits_of, short_names, strokes
from scalerl.forecast.report.numbers import number_text
from scalerl.forecast.report.options import FitOptions
from scalerl.forecast.report.picture import cut, draw, legend_text, picture_of
from scalerl.forecast.report.results import Result

ALONE = FitOptions(alone=True)


def drawn(*runs: Series) -> Curves:
    return chart(analyse_fit(runs, ALONE).curves, "curves")


@pytest.fixture(scope="module")
def one() -> Result:
    later = np.array([5000.0, 20000.0])
    held: dict[str, Any] = {"holdout_compute": later, "holdout_reward": sigmoid(later, 0.6, 1.9, 1000.0, 0.3)}
    return analyse_fit([series(**held)], FitOptions(skip_before=500.0, fit_until=2500.0))


@pytest.fixture(scope="module")
def compared() -> Result:
    slow = series("fig/slow", exponent=1.4, ceiling=0.595, seed=1, noise=0.003)
    fast = series("fig/fast", exponent=3.0, ceiling=0.6, seed=2, noise=0.003)
    return analyse_compare([slow, fast], ALONE, 40000.0)


# One curve


def test_every_point_has_its_role(one: Result):
    figure, (curve,) = picture_of(one), one.curves
    (points,), given = [each.dots for each in figure.chart.drawn], curve.series
    outside = (given.compute < 500) | (given.compute > 2500)
    for role, compute in {
        "left out": given.compute[outside], "fitted": given.compute[~outside], "held out": given.holdout_compute,
    }.items():  # fmt: skip
        np.testing.assert_array_equal(points.compute[points.role == role], compute)


def test_the_curve_goes_beyond_the_data_to_what_was_held_out(one: Result):
    line = chart(one.curves, "curves").drawn[0].line
    assert line is not None
    assert line.last <= 2500
    # From the first point, left out though it was, to the last, which is more than 4 times the data.
    assert (line.compute[0], line.compute[-1]) == pytest.approx((300, 20000))
    assert {line.first, line.last} <= set(line.compute)
    assert line.band is not None
    assert (np.diff([line.band[0], line.reward, line.band[1]], axis=0) >= -1e-9).all()


def test_curves_are_drawn_to_four_times_the_data_or_as_asked():
    asked = chart(analyse_forecast([series()], ALONE, [50000.0], [0.5, 0.9]).curves, "curves").drawn[0]
    ends = [each.line.compute[-1] for each in (drawn(series()).drawn[0], asked) if each.line is not None]
    assert ends == pytest.approx([12000, 50000])
    (compute, _), (_, reached) = asked.marks  # 0.9 is above the ceiling and has no mark
    assert (compute, reached) == (50000, 0.5)


def test_fallen_curve_has_a_peak_and_no_ceiling():
    rising = series(reach=20_000.0, num=80)
    fallen = 0.12 * np.clip(rising.compute - 12_000.0, 0.0, None) / 8_000.0
    (curve,) = analyse_fit([replace(rising, reward=rising.reward - fallen)], ALONE).curves
    assert (curve.state, curve.ceiling) == (State.PAST_PEAK, None)
    ((compute, reward),) = chart([curve], "curves").drawn[0].marks
    assert (compute, reward) == (pytest.approx(12_000, abs=3_000), pytest.approx(0.6, abs=0.02))
    assert legend_text(curve, "a").startswith("a  peak 0.")


def test_curves_without_a_fit_keep_their_points():
    few, fine = drawn(series("few", num=3), broken(), series("fine", runs=2, num=12)).drawn
    assert (few.line, len(few.dots.compute)) == (None, 3)
    assert fine.line is not None
    # Each run has its own sign.
    assert (fine.dots.runs, np.bincount(fine.dots.run).tolist()) == (("seed0", "seed1"), [12, 12])


def test_many_curves_have_no_bands(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(figures, "MOST_BANDS", 2)
    lines = [each.line for each in drawn(*(series(f"s/{k}", seed=k) for k in range(3))).drawn]
    assert [line and line.band for line in lines] == [None] * 3


@pytest.mark.parametrize("num, noise, is_quantised, most", [
    (900, 0.05, False, 80), (200, 0.1, True, 60), (250, 0.004, False, None), (80, 0.1, True, None),
])  # fmt: skip
def test_many_points_are_drawn_as_bins(num: int, noise: float, is_quantised: bool, most: int | None):
    """Fewer of training rewards in quarters, as of four completions a step: rows of points that hide each other."""
    data = series(num=num, noise=noise)
    data = replace(data, reward=np.round(np.clip(data.reward, 0, 1) * 4) / 4) if is_quantised else data
    dots = drawn(data).drawn[0].dots
    if most is None:
        assert np.isnan(dots.error).all()
        assert np.array_equal(dots.reward, data.reward)
    else:
        assert len(dots.reward) <= most
        assert np.isfinite(dots.error).all()


def test_comparison_has_one_end_and_its_budget(compared: Result):
    figure = picture_of(compared)
    ends = [each.line.compute[-1] for each in figure.chart.drawn if each.line is not None]
    assert ends == pytest.approx([40000] * 2)
    assert (figure.chart.at, figure.title) == (40000, "fig")
    assert "P(best)" in figure.legend[0]


def test_axes_hold_bands_and_ceilings_with_their_intervals():
    """An early run has wide bands: cut off at the edge of the axis they would seem to end there."""
    early = [series("a", reach=900.0, num=16), series("b", reach=900.0, num=16, seed=1, ceiling=0.5)]
    made = drawn(*early)
    (left, right), (low, high) = limits_of(made)
    places = [each.ceiling_at for each in made.drawn]
    assert left < min(places) < max(places) < right
    assert len({*places}) == 2
    for each in made.drawn:
        assert each.line is not None
        assert each.line.band is not None
        assert each.ceiling is not None
        assert low < each.line.band[0].min() < each.line.band[1].max() < high
        assert low < each.ceiling.low < each.ceiling.value < each.ceiling.high < high
        assert max(each.line.compute) < each.ceiling_at


def test_nothing_is_cut_off_flat_at_the_edge_of_the_axis(one: Result):
    """What an axis cannot hold ends before its edge: a band where it leaves, a bar in an arrow."""
    made = chart(one.curves, "curves")
    (usual,) = made.drawn
    assert usual.line is not None
    assert usual.line.band is not None
    assert usual.ceiling is not None
    low, high = usual.line.band
    wide = np.linspace(1.0, 60.0, len(high))  # the data have a range of .4
    line = replace(usual.line, band=(low, high * wide), new_band=(low + 1.0 - wide, high))
    far = replace(usual, line=line, ceiling=replace(usual.ceiling, low=-40.0, high=40.0))
    for each, arrows in ((usual, set()), (far, {"above", "below"})):
        rewards = limits_of(replace(made, drawn=(each,)))[1]
        found = {stroke.kind: stroke for stroke in strokes(each, rewards)}
        for kind in ("band", "new-band", "ceiling"):
            assert rewards[0] <= found[kind].reward.min() < found[kind].reward.max() <= rewards[1]
        assert found.keys() & {"above", "below"} == arrows
        is_whole = found["band"].compute.max() == line.compute[-1]
        assert is_whole == (each is usual)
        assert found["band"].reward.max() < rewards[1]


# Words


@pytest.mark.parametrize(
    ("names", "shared", "short"),
    [
        (["fig2/a", "fig2/b/c"], "fig2", ["a", "b/c"]),
        (["fig2/a"], "", ["fig2/a"]),
        (["x", "x/y"], "", ["x", "x/y"]),
        (["s/a-seed0", "s/a-seed1"], "s", ["a-seed0", "a-seed1"]),
        (["a/one.csv", "b/one.csv"], "", ["a", "b"]),
        (["alone"], "", ["alone"]),
        (["same", "same"], "", ["same", "same"]),
    ],
)
def test_names_leave_out_what_all_share(names: list[str], shared: str, short: list[str]):
    assert short_names(names) == (shared, short)


def test_names_and_numbers_are_short():
    assert (cut("x" * 20, 20), cut("abc" * 30, 20)) == ("x" * 20, "abcabcabc...bcabcabc")
    computes = {0.25: "0.25", 750: "750", 1e3: "1k", 1.5e4: "15k", 2e6: "2M", 1e18: "1e18", 2.5e-5: "2.5e-5"}
    assert {compute: amount_text(compute) for compute in computes} == computes
    rewards = {0.61234: "0.612", 12.3456: "12.3", 19684.2: "19684", 3e9: "3e+09"}
    assert {reward: number_text(reward) for reward in rewards} == rewards


@pytest.mark.parametrize("low, high", [(900, 35000), (1.0, 1.2), (1e3, 1e19), (3e-7, 5.0), (2.1e20, 2.9e20)])
@pytest.mark.parametrize("most", [6, 12])
def test_ticks_lie_within_and_apart(low: float, high: float, most: int):
    ticks = compute_ticks(low, high, most)
    assert 2 <= len(ticks) <= most
    assert low <= ticks[0] < ticks[-1] <= high
    assert np.diff(np.log(ticks)).min() >= 0.99 * np.log(high / low) / most


@pytest.mark.parametrize("low, high", [(0.0, 1.0), (-3.2, 17.0), (1e5, 1.3e5), (0.0, 3e-7)])
def test_even_ticks_lie_within_and_are_few(low: float, high: float):
    ticks = even_ticks(low, high, 5)
    assert 2 <= len(ticks) <= 6
    assert low <= ticks[0] < ticks[-1] <= high * (1 + 1e-9)


def test_a_line_far_above_the_points_does_not_set_the_limits(one: Result):
    made = chart(one.curves, "curves")
    (drawn,) = made.drawn
    assert drawn.line is not None
    steep = replace(drawn, line=replace(drawn.line, reward=100 * drawn.line.reward))
    for each in (drawn, steep):
        (left, right), (low, high) = limits_of(replace(made, drawn=(each,)))
        assert low < drawn.dots.reward.min() < drawn.dots.reward.max() < high < 2
        assert left < drawn.dots.compute.min() < drawn.dots.compute.max() < right


# Files

AWKWARD = ["_first", "$x$ <i>zz</i> </script>", "%{x} \N{CJK UNIFIED IDEOGRAPH-66F2}", "long " * 40]


def test_files_are_written_and_the_same_figure_is_the_same_file(compared: Result, one: Result, tmp_path: Path):
    runs = [series(name, num=12, seed=k, runs=1 + k % 2) for k, name in enumerate(AWKWARD)]
    awkward = analyse_forecast([*runs, broken()], FitOptions(), [9000.0], [0.5])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, result in {
            "one.png": one, "again.png": one, "one.svg": one, "again.svg": one, "compared.PNG": compared,
            "awkward.svg": awkward,
        }.items():  # fmt: skip
            draw(result, tmp_path / name)
    contents = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(contents) == 6  # nothing else stays behind
    for name, content in contents.items():
        assert len(content) > 10_000
        assert ElementTree.fromstring(content).tag.endswith("svg") if "svg" in name else content[1:4] == b"PNG"
    assert all(contents[f"one.{kind}"] == contents[f"again.{kind}"] for kind in ("png", "svg"))


# Faults


@pytest.mark.parametrize(
    "name, message",
    [(name, r"\.png, \.svg\.") for name in ("a.pdf", "a")]
    + [("none/a.png", "there is no folder"), ("folder.png", "cannot write")],
)
def test_file_that_cannot_be_written(one: Result, tmp_path: Path, name: str, message: str):
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(InputError, match=message) as fault:
        draw(one, tmp_path / name)
    assert name in str(fault.value)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.png"]


@pytest.mark.parametrize(
    ("number", "message"), [(28, "the disk is full"), (30, r"cannot write .*a\.png: Read-only file system\.")]
)
def test_a_failed_drawing_leaves_the_old_file(
    one: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, message: str
):
    def fail(figure: object, path: Path, **how: object) -> None:
        path.write_text("half")
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", fail)
    (tmp_path / "a.png").write_text("old")
    with pytest.raises(InputError, match=message):
        draw(one, tmp_path / "a.png")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]
