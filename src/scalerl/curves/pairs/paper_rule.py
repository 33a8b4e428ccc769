"""The paper's own comparison of fits, by point estimates: arXiv 2510.13786, 1.1 and A.5.

Ceilings that differ by more than 0.02 decide. Otherwise both curves are fitted again with the mean of the two ceilings,
and the larger exponent is at least as efficient. There are no probabilities: compare.py has them.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

import numpy as np

from scalerl.curves.fitted import Fit
from scalerl.curves.least_squares import paper_grid
from scalerl.curves.pairs.compare import CEILING_MARGIN, Comparison, Pair, no_pair
from scalerl.curves.pairs.notes import PairKind
from scalerl.curves.points import make_points

_ROUNDING = 1e-9  # ceilings lie on a grid of 0.005


def compare_by_paper(fits: Mapping[str, Fit], *, margin: float = CEILING_MARGIN) -> Comparison:
    """Compare fits of method="paper" two by two; share a ceiling among those within the margin of the best."""
    pairs = tuple(
        _pair(a, b, fits[a], fits[b], margin) if fits[a].usable and fits[b].usable else no_pair(a, b, fits)
        for a, b in combinations(fits, 2)
    )
    ceilings = {name: curve.params["ceiling"] for name, curve in fits.items() if curve.usable}
    near = [name for name, ceiling in ceilings.items() if ceiling >= max(ceilings.values()) - margin - _ROUNDING]
    if len(near) < 2:
        return Comparison(pairs=pairs, ranking=(), shared_ceiling=None, shared_fits={})
    shared = float(np.mean([ceilings[name] for name in near]))
    return Comparison(
        pairs=pairs, ranking=(), shared_ceiling=shared, shared_fits={name: _refit(fits[name], shared) for name in near}
    )


def _pair(name_a: str, name_b: str, a: Fit, b: Fit, margin: float) -> Pair:
    difference = a.params["ceiling"] - b.params["ceiling"]
    shared = abs(difference) <= margin + _ROUNDING
    if shared:
        ceiling = (a.params["ceiling"] + b.params["ceiling"]) / 2
        lead = _refit(a, ceiling).params["exponent"] - _refit(b, ceiling).params["exponent"]
        kind: PairKind = "more_efficient" if lead else "not_separable"
    else:
        lead, kind = difference, "higher_ceiling"
    return replace(
        no_pair(name_a, name_b, {name_a: a, name_b: b}),
        kind=kind,
        winner=None if not lead else name_a if lead > 0 else name_b,
        ceiling_difference=difference,
        notes=(),
        shared=shared,
        probably_higher=None if shared else name_a if difference > 0 else name_b,
    )


def _refit(curve: Fit, ceiling: float) -> Fit:
    """Fit the exponent and the midpoint again with this ceiling, by the paper's grid."""
    points = make_points(curve.compute, curve.reward, bounds=curve.bounds)
    best = paper_grid(points, curve.params["start"], ceilings=np.array([ceiling]))
    exponent, midpoint = np.exp(best.log_shape) * [1.0, points.scale]
    params = curve.params | {"ceiling": ceiling, "exponent": float(exponent), "midpoint": float(midpoint)}
    return replace(curve, params=params, least_squares=params, sum_squares=best.squares)
