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
from scalerl.forecast.report.document import Curves, Drawn
from scalerl.forecast.report.figures import chart, compute_ticks, even_ticks, marks_of, short_names
from scalerl.forecast.report.options import FitOptions
from scalerl.forecast.report.picture import cut, draw, legend_text, picture_of
from scalerl.forecast.report.results import Result
from scalerl.forecast.report.wording import number_text

ALONE = FitOptions(alone=True)


def drawn(*runs: Series) -> Curves:
    return chart(analyse_fit(runs, ALONE).curves, "curves")


def points(each: Drawn, kind: str, what: str = "compute") -> np.ndarray:
    """The numbers of all strokes of one kind."""
    return np.concatenate([np.empty(0), *(getattr(stroke, what) for stroke in each.strokes if stroke.kind == kind)])


def line(each: Drawn, what: str = "compute") -> np.ndarray:
    """The numbers of the whole line: its dashed parts hold the ends of the solid one."""
    parts = [getattr(stroke, what) for stroke in each.strokes if stroke.kind in ("line", "forecast")]
    return np.concatenate([parts[0], *(part[1:] for part in parts[1:])])


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
    (drawn,), given = picture_of(one).chart.drawn, one.curves[0].series
    outside = (given.compute < 500) | (given.compute > 2500)
    for kind, compute in {
        "left-out": given.compute[outside], "fitted": given.compute[~outside], "held-out": given.holdout_compute,
    }.items():  # fmt: skip
        np.testing.assert_array_equal(points(drawn, kind), compute)


def test_the_curve_goes_beyond_the_data_to_what_was_held_out(one: Result):
    (drawn,) = chart(one.curves, "curves").drawn
    assert points(drawn, "line")[-1] <= 2500
    # From the first point, left out though it was, to the last, which is more than 4 times the data.
    assert line(drawn)[[0, -1]] == pytest.approx((300, 20000))
    assert {*one.curves[0].fit.compute[[0, -1]]} == {*points(drawn, "line")[[0, -1]]}
    low, high = np.split(points(drawn, "band", "reward"), 2)
    assert (np.diff([low, line(drawn, "reward"), high[::-1]], axis=0) >= -1e-9).all()


def test_curves_are_drawn_to_four_times_the_data_or_as_asked():
    asked = analyse_forecast([series()], ALONE, [50000.0], [0.5, 0.9])
    ends = [line(each)[-1] for each in (*drawn(series()).drawn, *chart(asked.curves, "curves").drawn)]
    assert ends == pytest.approx([12000, 50000])
    (compute, _), (_, reached) = marks_of(asked.curves[0])  # 0.9 is above the ceiling and has no mark
    assert (compute, reached) == (50000, 0.5)
    (drawn_marks,) = chart(asked.curves, "curves").drawn
    assert points(drawn_marks, "mark")[0] == 50000


def test_fallen_curve_has_a_peak_and_no_ceiling():
    rising = series(reach=20_000.0, num=80)
    fallen = 0.12 * np.clip(rising.compute - 12_000.0, 0.0, None) / 8_000.0
    (curve,) = analyse_fit([replace(rising, reward=rising.reward - fallen)], ALONE).curves
    assert (curve.state, curve.ceiling) == (State.PAST_PEAK, None)
    ((compute, reward),) = marks_of(curve)
    assert (compute, reward) == (pytest.approx(12_000, abs=3_000), pytest.approx(0.6, abs=0.02))
    assert legend_text(curve, "a").startswith("a  peak 0.")


def test_curves_without_a_fit_keep_their_points():
    few, fine = drawn(series("few", num=3), broken(), series("fine", runs=2, num=12)).drawn
    assert {stroke.kind: len(stroke.compute) for stroke in few.strokes} == {"fitted": 3}
    assert len(points(fine, "line"))
    # Each run has its own sign.
    runs = [(stroke.name, stroke.run, len(stroke.compute)) for stroke in fine.strokes if stroke.kind == "fitted"]
    assert runs == [("seed0", 0, 12), ("seed1", 1, 12)]


def test_many_curves_have_no_bands(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(figures, "MOST_BANDS", 2)
    for each in drawn(*(series(f"s/{k}", seed=k) for k in range(3))).drawn:
        assert {stroke.kind for stroke in each.strokes} == {"line", "forecast", "fitted"}


@pytest.mark.parametrize("num, noise, is_quantised, most", [
    (900, 0.05, False, 80), (200, 0.1, True, 60), (250, 0.004, False, None), (80, 0.1, True, None),
])  # fmt: skip
def test_many_points_are_drawn_as_bins(num: int, noise: float, is_quantised: bool, most: int | None):
    """Fewer of training rewards in quarters, as of four completions a step: rows of points that hide each other."""
    data = series(num=num, noise=noise)
    data = replace(data, reward=np.round(np.clip(data.reward, 0, 1) * 4) / 4) if is_quantised else data
    (dots,) = [stroke for stroke in drawn(data).drawn[0].strokes if stroke.kind == "fitted"]
    if most is None:
        assert dots.error is None
        assert np.array_equal(dots.reward, data.reward)
    else:
        assert len(dots.reward) <= most
        assert dots.error is not None
        assert np.isfinite(dots.error).all()


def test_comparison_has_one_end_and_its_budget(compared: Result):
    figure = picture_of(compared)
    assert [line(each)[-1] for each in figure.chart.drawn] == pytest.approx([40000] * 2)
    assert (figure.chart.at, figure.title) == (40000, "fig")
    assert "P(best)" in figure.legend[0]


def test_axes_hold_bands_and_ceilings_with_their_intervals():
    """An early run has wide bands: cut off at the edge of the axis they would seem to end there."""
    early = [series("a", reach=900.0, num=16), series("b", reach=900.0, num=16, seed=1, ceiling=0.5)]
    made = drawn(*early)
    (left, right), (low, high) = made.limits
    places = [points(each, "level")[0] for each in made.drawn]
    assert left < min(places) < max(places) < right
    assert len({*places}) == 2
    for each in made.drawn:
        band = points(each, "band", "reward")
        assert low < band.min() < band.max() < high
        (lowest, highest), (value,) = points(each, "ceiling", "reward"), points(each, "level", "reward")
        assert low < lowest < value < highest < high
        assert line(each).max() < points(each, "level")[0]


def test_nothing_is_cut_off_flat_at_the_edge_of_the_axis(one: Result, monkeypatch: pytest.MonkeyPatch):
    """What an axis cannot hold ends before its edge: a band where it leaves, a bar in an arrow."""
    (usual,) = chart(one.curves, "curves").drawn
    low, high = np.split(points(usual, "band", "reward"), 2)
    far = 40.0 + 0.0 * low  # the data have a range of .4
    whole = points(usual, "band").max()
    own, ceiling = figures.line_strokes, one.curves[0].ceiling
    assert ceiling is not None

    def widened(*given: Any, **how: Any) -> Any:
        for stroke in own(*given, **how):
            if stroke.kind == "band":
                wide = np.linspace(1.0, 60.0, len(high))
                stroke = replace(stroke, reward=np.concatenate([low, (high[::-1] * wide)[::-1]]))
            elif stroke.kind == "new-band":
                stroke = replace(stroke, reward=np.concatenate([low - np.linspace(0.0, 60.0, len(low)), high]))
            yield stroke

    monkeypatch.setattr(figures, "line_strokes", widened)
    wide = replace(one.curves[0], ceiling=replace(ceiling, low=-far[0], high=far[0]))
    changed = chart([wide], "curves")
    monkeypatch.undo()
    for made, arrows in ((chart(one.curves, "curves"), set()), (changed, {"above", "below"})):
        rewards = made.limits[1]
        found = {stroke.kind: stroke for stroke in made.drawn[0].strokes}
        for kind in ("band", "new-band", "ceiling"):
            assert rewards[0] <= found[kind].reward.min() < found[kind].reward.max() <= rewards[1]
        assert found.keys() & {"above", "below"} == arrows
        assert (found["band"].compute.max() == whole) == (not arrows)
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


def test_a_line_far_above_the_points_does_not_set_the_limits(one: Result, monkeypatch: pytest.MonkeyPatch):
    usual = chart(one.curves, "curves")
    own = figures.line_strokes

    def steep(*given: Any, **how: Any) -> Any:
        for stroke in own(*given, **how):
            yield replace(stroke, reward=100 * stroke.reward) if stroke.shape == "line" else stroke

    monkeypatch.setattr(figures, "line_strokes", steep)
    for made in (usual, chart(one.curves, "curves")):
        (left, right), (low, high) = made.limits
        for kind in figures.POINTS:
            rewards, computes = points(usual.drawn[0], kind, "reward"), points(usual.drawn[0], kind)
            assert low < rewards.min() < rewards.max() < high < 2
            assert left < computes.min() < computes.max() < right


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
