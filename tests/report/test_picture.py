"""The numbers a figure shows, and that the files are written; not the pixels."""

import os
import re
import subprocess
import sys
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from simulate import broken, series, sigmoid

from scalerl.curves import Fit, Verdict
from scalerl.errors import InputError
from scalerl.logs.series import Series
from scalerl.report.figures import Line, figure_data, short_names
from scalerl.report.json import to_json
from scalerl.report.numbers import number_text, short_compute_text
from scalerl.report.picture import compute_ticks, cut, draw, legend_text
from scalerl.report.results import Analysis, FitOptions, analyse_compare, analyse_fit, analyse_forecast


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
    data, fit = figure_data(one).curves[0], fit_of(one)
    given, points = one.curves[0].series, data.points
    outside = (given.compute < 500) | (given.compute > 2500)
    found = {role: points.role == role for role in ("left out", "fitted", "held out")}
    np.testing.assert_array_equal(points.compute[found["left out"]], given.compute[outside])
    np.testing.assert_array_equal(points.compute[found["fitted"]], given.compute[~outside])
    np.testing.assert_array_equal(points.reward[found["held out"]], given.holdout_reward)
    np.testing.assert_allclose(data.residual, points.reward - fit.predict(points.compute))
    assert data.ceiling is not None
    assert (data.ceiling.value, data.ceiling.low, data.ceiling.high) == (
        fit.params["ceiling"], *fit.interval("ceiling"),
    )  # fmt: skip


def fit_of(analysis: Analysis) -> Fit:
    fit = analysis.curves[0].fit
    assert fit is not None
    return fit


def line_of(analysis: Analysis) -> Line:
    line = figure_data(analysis).curves[0].line
    assert line is not None
    return line


def test_the_curve_goes_beyond_the_data_to_what_was_held_out(one: Analysis):
    line = line_of(one)
    assert line.last == fit_of(one).scale <= 2500
    assert line.compute[-1] == pytest.approx(20000)  # more than 4 times the data
    assert line.compute[0] == pytest.approx(300)  # the first point, left out though it was
    assert {line.first, line.last} <= set(line.compute)
    assert line.band is not None
    assert line.new_band is not None
    assert (line.band[0] <= line.reward + 1e-9).all()
    assert (line.reward <= line.band[1] + 1e-9).all()
    # Near the data, drift and misfit are known from the residuals, and a new evaluation follows them: only far beyond
    # is its band the wider one.
    new, own = (band[1][-1] - band[0][-1] for band in (line.new_band, line.band))
    assert new > 0.95 * own


def test_curves_are_drawn_to_four_times_the_data():
    asked = figure_data(analyse_forecast([series()], FitOptions(), [50000.0], [0.5, 0.9])).curves[0]
    assert asked.line is not None
    assert line_of(analyse_fit([series()], FitOptions())).compute[-1] == pytest.approx(12000)
    assert asked.line.compute[-1] == pytest.approx(50000)
    (compute, reward), (needed, reached) = asked.marks  # 0.9 is above the ceiling and has no mark
    assert (compute.value, reached.value) == (50000, 0.5)
    assert reward.low < reward.value < reward.high
    assert needed.low < needed.value < needed.high


def test_a_verdict_to_beware_of_is_marked():
    curves = figure_data(
        analyse_fit([series("short", reach=500.0), series("long", reach=30_000.0, num=80, noise=0.002)], FitOptions())
    ).curves
    assert not curves[0].is_ok
    assert legend_text(curves[0]).endswith(f"(!) {Verdict.WIDE}")
    assert re.fullmatch(r"long  0\.\d{3} \[0\.\d{3}, 0\.\d{3}\]  ok", legend_text(curves[1]))


def test_the_range_is_not_that_of_an_exploding_band():
    analysis = analyse_fit([series(reach=500.0)], FitOptions())
    data, line = figure_data(analysis), line_of(analysis)
    rewards = data.curves[0].points.reward
    assert line.band is not None
    assert line.band[1].max() > data.y_range[1]
    assert data.y_range[0] < rewards.min()
    assert data.y_range[1] < rewards.max() + 2 * np.ptp(rewards)


def test_a_far_held_out_point_does_not_flatten_the_residuals():
    data = figure_data(
        analyse_fit([series(holdout_compute=np.array([6000.0]), holdout_reward=np.array([0.1]))], FitOptions())
    )
    ((fitted,), (held,)) = (data.residuals(role) for role in ("fitted", "held out"))
    assert np.abs(fitted).max() < data.residual_limit < 0.1 < np.abs(held).max()


def test_fallen_curve_has_a_peak_and_no_ceiling():
    rising = series(reach=20_000.0, num=80)
    fallen = 0.06 * np.clip(rising.compute - 12_000.0, 0.0, None) / 8_000.0
    analysis = analyse_fit([replace(rising, reward=rising.reward - fallen)], FitOptions())
    (drawn,) = figure_data(analysis).curves
    assert drawn.ceiling is None
    assert drawn.peak is not None
    assert 8_000 < drawn.peak[0] < 15_000
    assert drawn.peak[1] == pytest.approx(0.6, abs=0.01)
    assert drawn.line is not None
    assert drawn.line.compute[-1] > 20_000  # the forecast goes on from the fall
    assert legend_text(drawn).startswith("a  peak 0.")
    assert legend_text(drawn).endswith(Verdict.FALLEN)
    [fall] = [each for each in to_json(analysis)["curves"][0]["notes"] if each["kind"] == "fall"]
    assert fall["low"] < 0.06 < fall["high"]


def test_curves_without_a_fit_keep_their_points():
    data = figure_data(analyse_fit([series("few", num=3), broken(), series("fine", runs=2, num=12)], FitOptions()))
    few, none, fine = data.curves
    assert (few.line, few.ceiling, len(few.points.compute), len(none.points.compute)) == (None, None, 3, 0)
    assert np.isnan(few.residual).all()
    assert legend_text(none) == "broken  (!) no curve"
    assert fine.line is not None
    # Each run has its own sign.
    assert (fine.points.runs, np.bincount(fine.points.run).tolist()) == (("seed0", "seed1"), [12, 12])


def test_many_curves_have_no_bands():
    data = figure_data(analyse_fit([series(f"s/{k}", seed=k) for k in range(9)], FitOptions()))
    assert all(curve.line is not None and curve.line.band is None for curve in data.curves)
    assert data.title == "s"
    assert [curve.label for curve in data.curves][:2] == ["0", "1"]


def test_different_units_are_said_and_not_drawn_as_one():
    runs = [series("a"), series("b", x_label="flops", y_label="reward")]
    data = figure_data(analyse_fit(runs, FitOptions()))
    assert (data.x_label, data.y_label) == ("compute (different units)", "reward")
    assert data.crossings == ()


# A comparison


def test_comparison_has_one_end_ranking_and_crossings(compared: Analysis):
    data, comparison = figure_data(compared), compared.comparisons[""]
    ends = {float(line.compute[-1]) for line in data.lines}
    assert len(ends) == 1
    assert ends.pop() == pytest.approx(40000)
    assert data.target == 40000
    assert {curve.result.name: curve.p_best for curve in data.curves} == dict(comparison.ranking)
    assert f"P(best) {comparison.ranking[0][1]:.2f}" in " ".join(map(legend_text, data.curves))
    crossings = [pair.crossing for pair in comparison.pairs if pair.crossing is not None]
    assert crossings
    assert {compute for compute, _ in data.crossings} <= set(crossings)
    fits = {result.name: result.fit for result in compared.curves}
    crossed = next(pair for pair in comparison.pairs if pair.crossing == data.crossings[0][0])
    for name in (crossed.a, crossed.b):
        fit = fits[name]
        assert fit is not None
        assert float(fit.predict(crossed.crossing)) == pytest.approx(data.crossings[0][1], abs=0.002)


def test_evaluation_sets_are_ranked_separately():
    runs = [series(f"{run}/{name}", seed=seed, evaluation_set=name) for seed, run in enumerate("ab") for name in "vt"]
    shown = figure_data(analyse_compare(runs, FitOptions(), None))
    assert sum(curve.p_best or 0.0 for curve in shown.curves) == pytest.approx(2)


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


@cache
def awkward() -> Analysis:
    return analyse_forecast(
        [series(name, num=12, seed=k, runs=1 + k % 2) for k, name in enumerate(AWKWARD)] + [broken()],
        FitOptions(), [9000.0], [0.5],
    )  # fmt: skip


@pytest.mark.parametrize("suffix", [".png", ".svg", ".PNG"])
def test_files_are_written_and_the_same_figure_is_the_same_file(
    compared: Analysis, one: Analysis, tmp_path: Path, suffix: str
):
    for number, analysis in enumerate((one, compared, awkward()) if suffix == ".svg" else (one, one)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            draw(analysis, tmp_path / f"{number}{suffix}")
    draw(one, tmp_path / f"again{suffix}")
    content = (tmp_path / f"0{suffix}").read_bytes()
    assert content == (tmp_path / f"again{suffix}").read_bytes()
    for path in tmp_path.iterdir():  # nothing else stays behind
        content = path.read_bytes()
        assert len(content) > 10_000
        assert ElementTree.fromstring(content).tag.endswith("svg") if suffix == ".svg" else content[1:4] == b"PNG"


def test_no_matplotlib_without_a_plot():
    code = "import sys, scalerl.report.picture; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Faults


@pytest.mark.parametrize(
    "name, message",
    [(name, r"\.png, \.svg\.") for name in ("a.pdf", "a", "a.png.gz", "a.html")]
    + [("none/a.png", "there is no folder"), ("folder.png", "cannot write")],
)
def test_file_that_cannot_be_written(one: Analysis, tmp_path: Path, name: str, message: str):
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(InputError, match=message) as fault:
        draw(one, tmp_path / name)
    assert name in str(fault.value)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.png"]


def test_missing_extra(one: Analysis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r'--plot needs the report extra: pip install "scalerl\[report\]"'):
        draw(one, tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []


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


def quantised(num: int) -> Series:
    """Training rewards in quarters, as of four completions a step."""
    noisy = series(num=num, noise=0.1)
    return replace(noisy, reward=np.round(np.clip(noisy.reward, 0, 1) * 4) / 4)


@pytest.mark.parametrize(("data", "most"), [(series(num=900, noise=0.05), 80), (quantised(200), 60)])
def test_many_points_are_drawn_as_bins(data: Series, most: int):
    analysis = analyse_fit([data], FitOptions())
    shown = figure_data(analysis)
    points = shown.curves[0].points
    assert len(points.reward) <= most
    assert np.isfinite(points.error).all()
    assert shown.noise_sd < 0.7 * fit_of(analysis).noise_sd


@pytest.mark.parametrize("data", [series(num=250), quantised(80)])
def test_few_points_are_drawn_one_by_one(data: Series):
    points = figure_data(analyse_fit([data], FitOptions())).curves[0].points
    assert np.isnan(points.error).all()
    assert np.array_equal(points.reward, data.reward)
