"""The numbers a figure shows, and that the files are written; not the pixels."""

import os
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from simulate import broken, series, sigmoid

from scalerl.curves import Value, Verdict
from scalerl.errors import InputError
from scalerl.logs.series import Series
from scalerl.report import figures
from scalerl.report.figures import FigureData, figure_data, short_names
from scalerl.report.json import to_json
from scalerl.report.numbers import number_text, short_compute_text
from scalerl.report.picture import compute_ticks, cut, draw, legend_text
from scalerl.report.results import Analysis, FitOptions, analyse_compare, analyse_fit, analyse_forecast


def drawn(*runs: Series, **options: Any) -> FigureData:
    return figure_data(analyse_fit(runs, FitOptions(**options)))


@pytest.fixture(scope="module")
def one() -> Analysis:
    later = np.array([5000.0, 20000.0])
    held: dict[str, Any] = {"holdout_compute": later, "holdout_reward": sigmoid(later, 0.6, 1.9, 1000.0, 0.3)}
    return analyse_fit([series(**held)], FitOptions(skip_before=500.0, fit_until=2500.0))


@pytest.fixture(scope="module")
def compared() -> Analysis:
    slow = series("fig/slow", exponent=1.4, ceiling=0.595, seed=1, noise=0.003)
    fast = series("fig/fast", exponent=3.0, ceiling=0.6, seed=2, noise=0.003)
    low = series("fig/low", exponent=2.0, ceiling=0.45, seed=3, noise=0.003)
    return analyse_compare([slow, fast, low], FitOptions(), 40000.0)


# One curve


def test_every_point_has_its_role_and_residual(one: Analysis):
    (data,), fit = figure_data(one).curves, one.curves[0].fit
    given, points = one.curves[0].series, data.points
    outside = (given.compute < 500) | (given.compute > 2500)
    for role, compute in {
        "left out": given.compute[outside], "fitted": given.compute[~outside], "held out": given.holdout_compute,
    }.items():  # fmt: skip
        np.testing.assert_array_equal(points.compute[points.role == role], compute)
    np.testing.assert_allclose(data.residual, points.reward - fit.predict(points.compute))
    low, high = fit.interval("ceiling")
    assert data.ceiling == Value(value=fit.params["ceiling"], low=low, high=high)


def test_the_curve_goes_beyond_the_data_to_what_was_held_out(one: Analysis):
    (line,) = figure_data(one).lines
    assert line.last <= 2500
    # From the first point, left out though it was, to the last, which is more than 4 times the data.
    assert (line.compute[0], line.compute[-1]) == pytest.approx((300, 20000))
    assert {line.first, line.last} <= set(line.compute)
    assert line.band is not None
    assert line.new_band is not None
    assert (np.diff([line.band[0], line.reward, line.band[1]], axis=0) >= -1e-9).all()
    # Near the data, drift and misfit are known from the residuals, and a new evaluation follows them: only far beyond
    # is its band the wider one.
    new, own = (band[1][-1] - band[0][-1] for band in (line.new_band, line.band))
    assert new > 0.95 * own


def test_curves_are_drawn_to_four_times_the_data_or_as_asked():
    (asked,) = figure_data(analyse_forecast([series()], FitOptions(), [50000.0], [0.5, 0.9])).curves
    assert asked.line is not None
    ends = [line.compute[-1] for line in (drawn(series()).lines[0], asked.line)]
    assert ends == pytest.approx([12000, 50000])
    (compute, reward), (needed, reached) = asked.marks  # 0.9 is above the ceiling and has no mark
    assert (compute.value, reached.value) == (50000, 0.5)
    assert reward.low < reward.value < reward.high
    assert needed.low < needed.value < needed.high


def test_what_is_unsure_is_marked_and_does_not_set_the_range():
    data = drawn(series("short", reach=500.0))
    (short,), rewards = data.curves, data.curves[0].points.reward
    assert not short.is_ok
    assert legend_text(short).endswith(f"(!) {Verdict.WIDE}")
    (long,) = drawn(series("long", reach=30_000.0, num=80, noise=0.002)).curves
    assert re.fullmatch(r"long  0\.\d{3} \[0\.\d{3}, 0\.\d{3}\]  ok", legend_text(long))
    assert short.line is not None
    assert short.line.band is not None
    assert short.line.band[1].max() > data.y_range[1]
    assert data.y_range[0] < rewards.min()
    assert data.y_range[1] < rewards.max() + 2 * np.ptp(rewards)
    # Nor does a point far from the curve set that of the residuals.
    data = drawn(series(holdout_compute=np.array([6000.0]), holdout_reward=np.array([0.1])))
    ((fitted,), (held,)) = (data.residuals(role) for role in ("fitted", "held out"))
    assert np.abs(fitted).max() < data.residual_limit < 0.1 < np.abs(held).max()


def test_fallen_curve_has_a_peak_and_no_ceiling():
    rising = series(reach=20_000.0, num=80)
    fallen = 0.06 * np.clip(rising.compute - 12_000.0, 0.0, None) / 8_000.0
    analysis = analyse_fit([replace(rising, reward=rising.reward - fallen)], FitOptions())
    (curve,) = figure_data(analysis).curves
    assert curve.ceiling is None
    assert curve.peak is not None
    assert curve.peak == (pytest.approx(11_500, abs=3_500), pytest.approx(0.6, abs=0.01))
    assert curve.line is not None
    assert curve.line.compute[-1] > 20_000  # the forecast goes on from the fall
    assert re.fullmatch(rf"a  peak 0\.\d.*{Verdict.FALLEN}", legend_text(curve))
    [fall] = [each for each in to_json(analysis)["curves"][0]["notes"] if each["kind"] == "fall"]
    assert fall["low"] < 0.06 < fall["high"]


def test_curves_without_a_fit_keep_their_points():
    few, none, fine = drawn(series("few", num=3), broken(), series("fine", runs=2, num=12)).curves
    assert (few.line, few.ceiling, len(few.points.compute), len(none.points.compute)) == (None, None, 3, 0)
    assert np.isnan(few.residual).all()
    assert legend_text(none) == "broken  (!) no curve"
    assert fine.line is not None
    # Each run has its own sign.
    assert (fine.points.runs, np.bincount(fine.points.run).tolist()) == (("seed0", "seed1"), [12, 12])


def test_many_curves_have_no_bands_and_short_names(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(figures, "MOST_BANDS", 2)
    data = drawn(*(series(f"s/{k}", seed=k) for k in range(3)))
    assert [line.band for line in data.lines] == [None] * 3
    assert (data.title, [curve.label for curve in data.curves]) == ("s", ["0", "1", "2"])


@pytest.mark.parametrize("num, noise, is_quantised, most", [
    (900, 0.05, False, 80), (200, 0.1, True, 60), (250, 0.004, False, None), (80, 0.1, True, None),
])  # fmt: skip
def test_many_points_are_drawn_as_bins(num: int, noise: float, is_quantised: bool, most: int | None):
    """Fewer of training rewards in quarters, as of four completions a step: rows of points that hide each other."""
    data = series(num=num, noise=noise)
    data = replace(data, reward=np.round(np.clip(data.reward, 0, 1) * 4) / 4) if is_quantised else data
    shown = drawn(data)
    (curve,) = shown.curves
    if most is None:
        assert np.isnan(curve.points.error).all()
        assert np.array_equal(curve.points.reward, data.reward)
    else:
        assert len(curve.points.reward) <= most
        assert np.isfinite(curve.points.error).all()
        assert shown.noise_sd < 0.7 * curve.result.fit.noise_sd


# A comparison


def test_comparison_has_one_end_ranking_and_crossings(compared: Analysis):
    data, comparison = figure_data(compared), compared.comparisons[""]
    assert [line.compute[-1] for line in data.lines] == pytest.approx([40000] * 3)
    assert data.target == 40000
    assert {curve.result.name: curve.p_best for curve in data.curves} == dict(comparison.ranking)
    assert f"P(best) {comparison.ranking[0][1]:.2f}" in " ".join(map(legend_text, data.curves))
    fits = {result.name: result.fit for result in compared.curves}
    crossed = [pair for pair in comparison.pairs if pair.crossing is not None]
    assert crossed
    for pair, (compute, reward) in zip(crossed, data.crossings, strict=True):
        assert compute == pair.crossing
        values = [float(fits[name].predict(compute)) for name in (pair.a, pair.b)]
        assert values == pytest.approx([reward] * 2, abs=0.002)


# Words


def test_names_and_numbers_are_short():
    assert short_names(["fig2/a", "fig2/b/c"]) == ("fig2", ["a", "b/c"])
    assert short_names(["fig2/a"]) == ("", ["fig2/a"])
    assert short_names(["x", "x/y"]) == ("", ["x", "x/y"])
    assert (cut("x" * 20, 20), cut("abc" * 30, 20)) == ("x" * 20, "abcabcabc...bcabcabc")
    computes = {0.25: "0.25", 750: "750", 1e3: "1k", 1.5e4: "15k", 2e6: "2M", 1e18: "1e18", 2.5e-5: "2.5e-5"}
    assert {compute: short_compute_text(compute) for compute in computes} == computes
    rewards = {0.61234: "0.612", 12.3456: "12.3", 19684.2: "19684", 3e9: "3e+09"}
    assert {reward: number_text(reward) for reward in rewards} == rewards


@pytest.mark.parametrize("low, high", [(900, 35000), (1.0, 1.2), (1e3, 1e19), (3e-7, 5.0), (2.1e20, 2.9e20)])
@pytest.mark.parametrize("most", [6, 12])
def test_ticks_lie_within_and_apart(low: float, high: float, most: int):
    ticks = compute_ticks(low, high, most)
    assert 2 <= len(ticks) <= most
    assert low <= ticks[0] < ticks[-1] <= high
    assert np.diff(np.log(ticks)).min() >= 0.99 * np.log(high / low) / most


# Files

AWKWARD = ["_first", "$x$ <i>zz</i> </script>", "%{x} \N{CJK UNIFIED IDEOGRAPH-66F2}", "long " * 40]


def test_files_are_written_and_the_same_figure_is_the_same_file(compared: Analysis, one: Analysis, tmp_path: Path):
    runs = [series(name, num=12, seed=k, runs=1 + k % 2) for k, name in enumerate(AWKWARD)]
    awkward = analyse_forecast([*runs, broken()], FitOptions(), [9000.0], [0.5])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, analysis in {
            "one.png": one, "again.png": one, "one.svg": one, "again.svg": one, "compared.PNG": compared,
            "awkward.svg": awkward,
        }.items():  # fmt: skip
            draw(analysis, tmp_path / name)
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
def test_file_that_cannot_be_written(one: Analysis, tmp_path: Path, name: str, message: str):
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(InputError, match=message) as fault:
        draw(one, tmp_path / name)
    assert name in str(fault.value)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.png"]


@pytest.mark.parametrize(
    ("number", "message"), [(28, "the disk is full"), (30, r"cannot write .*a\.png: Read-only file system\.")]
)
def test_a_failed_drawing_leaves_the_old_file(
    one: Analysis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, message: str
):
    def fail(figure: object, path: Path, kind: str) -> None:
        path.write_text("half")
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("scalerl.report.picture._save", fail)
    (tmp_path / "a.png").write_text("old")
    with pytest.raises(InputError, match=message):
        draw(one, tmp_path / "a.png")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]
