"""Fit, forecast, decide and compare reward-against-compute curves. Imports nothing else of scalerl.

>>> compute = [500, 1000, 1500, 2000, 2500, 3000, 3500, 4000, 5000, 6000, 8000, 12000, 16000]
>>> reward = [0.410, 0.431, 0.456, 0.477, 0.502, 0.519, 0.530, 0.543, 0.556, 0.567, 0.581, 0.591, 0.595]
>>> curve = fit(compute, reward, start=0.4)                    # 0.4 is the reward before training
>>> decision = decide(curve)
>>> decision.state.value, decision.action.value, round(curve.params["ceiling"], 2)
('levelling off', 'stop', 0.6)
>>> low, high = curve.interval("ceiling")
>>> low < 0.602 < high
True
>>> [later] = reward_at(curve, [32000])                        # a forecast, with the interval of a new evaluation
>>> round(later.reward.value, 2), later.reward.low < 0.6 < later.reward.high
(0.6, True)
>>> [needed] = compute_for(curve, [0.7])
>>> needed.compute is None
True
>>> old = [0.411, 0.427, 0.440, 0.454, 0.464, 0.473, 0.481, 0.488, 0.497, 0.503, 0.510, 0.517, 0.522]
>>> compare({"new": curve, "old": fit(compute, old, start=0.4)}).winner
'new'
"""

from scalerl.forecast.curves.compare import (
    PAPER_MARGIN,
    Comparison,
    Measured,
    Pair,
    PaperComparison,
    PaperPair,
    Standing,
    Target,
    compare,
    compare_by_paper,
    linearise,
)
from scalerl.forecast.curves.decide import (
    Action,
    Answer,
    Decision,
    Dip,
    Fall,
    Pick,
    Settling,
    State,
    decide,
    default_worth,
    pick,
    smallest_change,
)
from scalerl.forecast.curves.draws import Value, tails
from scalerl.forecast.curves.fit import Fit, Lack, fit, refit
from scalerl.forecast.curves.forecast import At, Reach, Score, compute_for, most_of_gain, reward_at, score
from scalerl.forecast.curves.forms import FORMS
from scalerl.forecast.curves.model import MODEL, Kind
from scalerl.forecast.curves.paper import Grid
from scalerl.forecast.curves.priors import Prior

__all__ = [
    "FORMS", "MODEL", "PAPER_MARGIN", "Action", "Answer", "At", "Comparison", "Decision", "Dip", "Fall", "Fit", "Grid",
    "Kind", "Lack", "Measured", "Pair", "PaperComparison", "PaperPair", "Pick", "Prior", "Reach",
    "Score", "Settling", "Standing", "State", "Target", "Value", "compare", "compare_by_paper", "compute_for", "decide",
    "default_worth", "fit", "linearise", "most_of_gain", "pick", "refit", "reward_at", "score", "smallest_change",
    "tails",
]  # fmt: skip
