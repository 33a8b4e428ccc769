"""The picture of a comparison: a ladder of recipes and their efficiency."""

import numpy as np
import pytest
from simulate import series

from scalerl.forecast.curves import Comparison
from scalerl.forecast.report.analyse import analyse_compare
from scalerl.forecast.report.options import FitOptions
from scalerl.forecast.report.picture import picture
from scalerl.forecast.report.results import Result

ALONE = FitOptions(alone=True)


def compared(*ceilings: float, exponents: tuple[float, float] = (1.9, 1.9)) -> Result:
    runs = [
        series(f"arm-{name}", ceiling=ceiling, exponent=exponent, noise=0.003, seed=seed)
        for seed, (name, ceiling, exponent) in enumerate(zip("ab", ceilings, exponents, strict=True))
    ]
    return analyse_compare(runs, ALONE, None)


def test_recipes_with_one_ceiling_have_ladder_and_line():
    result = compared(0.7, 0.7, exponents=(1.6, 2.4))
    comparison = result.comparisons[""]
    assert isinstance(comparison, Comparison)
    _, ladder, exponents, straight = picture(result).axes
    names = [each.name.removeprefix("arm-") for each in comparison.standings]
    assert [label.get_text() for label in ladder.get_yticklabels()] == names
    assert len(exponents.lines) == 2 * len(comparison.shared_fits)
    # The line of a recipe crosses 1 : 1 at its midpoint.
    lines = [line.get_data() for line in straight.lines if line.get_linestyle() == "-" and len(line.get_xdata()) == 2]
    crossings = {round(float(np.exp(np.interp(0.0, height, np.log(compute))))) for compute, height in lines}
    midpoints = {round(fit.params["midpoint"]) for fit in comparison.shared_fits.values()}
    assert midpoints <= crossings


def test_recipes_with_different_ceilings_have_no_line():
    assert len(picture(compared(0.85, 0.45)).axes) == 2


def test_a_bar_for_each_recipe():
    _, ladder = picture(compared(0.85, 0.45)).axes
    assert len(ladder.lines) == 4
    low, high = sorted(line.get_xdata()[0] for line in ladder.lines if len(line.get_xdata()) == 1)
    assert (low, high) == (pytest.approx(0.45, abs=0.05), pytest.approx(0.85, abs=0.05))
