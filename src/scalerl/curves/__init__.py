"""Fit, forecast and compare reward-against-compute curves. numpy and scipy only; imports nothing else of scalerl.

>>> compute = [500, 1000, 1500, 2000, 3000, 4000, 6000, 8000, 12000, 16000]
>>> reward = [0.410, 0.431, 0.456, 0.477, 0.519, 0.543, 0.567, 0.581, 0.591, 0.595]
>>> curve = fit(compute, reward, start=0.4)                    # 0.4 is the reward before training
>>> curve.verdict, round(curve.params["ceiling"], 2)
('ok', 0.6)
>>> low, high = curve.interval("ceiling")
>>> round(low, 2), round(high, 2)
(0.6, 0.6)
>>> [later] = reward_at(curve, [32000])                        # a forecast, with the interval of a new evaluation
>>> round(later.reward.value, 2), later.reward.low < 0.6 < later.reward.high
(0.6, True)
>>> [needed] = compute_for(curve, [0.7])
>>> needed.compute is None, needed.message
(True, '0.7 is above the ceiling of 0.601 (probability 100%).')
>>> slower = fit(compute, [0.411, 0.427, 0.44, 0.454, 0.473, 0.488, 0.503, 0.51, 0.517, 0.522], start=0.4)
>>> compare({"new": curve, "old": slower}).pairs[0].verdict
'new has the higher ceiling'
"""

from scalerl.curves.fit import Fit, fit
from scalerl.curves.forecast import (
    At,
    Backtest,
    Reach,
    Score,
    Value,
    backtest,
    compute_for,
    doubling,
    is_far,
    rank_forms,
    reward_at,
)
from scalerl.curves.forms import FORMS
from scalerl.curves.notes import Note, note_json
from scalerl.curves.pairs.compare import Comparison, Pair, compare, linearise, refit
from scalerl.curves.pairs.notes import PairKind
from scalerl.curves.residuals.bins import Bins, bin_rewards
from scalerl.curves.stopping import Stopping, stopping
from scalerl.curves.words import note_text, pair_verdict, stopping_text

__all__ = [
    "FORMS", "At", "Backtest", "Bins", "Comparison", "Fit", "Note", "Pair", "PairKind", "Reach", "Score", "Stopping",
    "Value", "backtest", "bin_rewards", "compare", "compute_for", "doubling", "fit", "is_far", "linearise",
    "note_json", "note_text", "pair_verdict", "rank_forms", "refit", "reward_at", "stopping", "stopping_text",
]  # fmt: skip
