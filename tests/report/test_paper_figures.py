"""Figures of the paper for anyone's runs."""

import numpy as np
import pytest

from scalerl.curves import compare, fit
from scalerl.report.paper_figures import Shown, figure, short_names

COMPUTE = np.geomspace(10.0, 4000.0, 30)


def curve(ceiling, midpoint=300.0):
    noise = 0.004 * np.sin(17.0 * np.arange(30))
    return fit(COMPUTE, 0.2 + (ceiling - 0.2) / (1 + (midpoint / COMPUTE) ** 1.6) + noise, start=0.2)


@pytest.mark.parametrize(
    ("names", "shared", "short"),
    [
        (["textcraft__main-clip-gp1.csv", "textcraft__main-pos.csv"], "textcraft main", ["clip-gp1", "pos"]),
        (["run-1", "run-10"], "run", ["1", "10"]),
        (["alone"], "", ["alone"]),
        (["scalerl", "scalerl-b"], "", ["scalerl", "scalerl-b"]),
        (["same", "same"], "", ["same", "same"]),
    ],
)
def test_names_leave_out_what_all_share(names, shared, short):
    assert short_names(names) == (shared, short)


def texts(axes):
    return [each.get_text() for each in axes.texts] + [axes.get_title(loc="left")]


def test_one_curve_is_annotated():
    held_out = (np.array([5000.0, 8000.0]), np.array([0.7, 0.7]))
    drawn = figure([Shown(name="a", fit=curve(0.7), held_out=held_out)], x_label="hours", y_label="score")
    [axes] = drawn.axes
    assert {each.split(":")[0].strip() for each in texts(axes) if ":" in each} == {"A", "B", "C_mid"}
    assert axes.get_xlim()[1] > 8000.0
    assert any(line.get_markerfacecolor() == "white" for line in axes.lines)


def test_recipes_with_one_ceiling_have_ladder_and_line():
    fits = {"arm-a": curve(0.70), "arm-b": curve(0.70, midpoint=500.0)}
    comparison = compare(fits)
    drawn = figure([Shown(name=name, fit=each) for name, each in fits.items()], comparison, x_label="h", y_label="r")
    _, ladder, exponents, line = drawn.axes
    assert [label.get_text() for label in ladder.get_yticklabels()] == [
        name.removeprefix("arm-") for name in (each.name for each in comparison.standings)
    ]
    assert len(exponents.lines) == 2 * len(comparison.shared_fits)
    assert line.get_yscale() == "log"
    # The line of a recipe crosses 1 : 1 at its midpoint.
    ends = [each.get_data() for each in line.lines if len(each.get_xdata()) == 2 and each.get_linestyle() == "-"]
    [first, *_] = ends
    midpoint = comparison.shared_fits["arm-a"].params["midpoint"]
    assert np.exp(np.interp(0.0, np.log(first[1]), np.log(first[0]))) == pytest.approx(midpoint, rel=1e-6)


def test_recipes_with_different_ceilings_have_no_line():
    fits = {"a": curve(0.85), "b": curve(0.45)}
    drawn = figure([Shown(name=name, fit=each) for name, each in fits.items()], compare(fits), x_label="h", y_label="r")
    assert len(drawn.axes) == 2
