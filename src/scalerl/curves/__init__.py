"""Fit, forecast and compare reward-against-compute curves. numpy and scipy only; imports nothing else of scalerl.

>>> compute = [500, 1000, 1500, 2000, 3000, 4000, 6000, 8000, 12000, 16000]
>>> reward = [0.410, 0.431, 0.456, 0.477, 0.519, 0.543, 0.567, 0.581, 0.591, 0.595]
>>> curve = fit(compute, reward, start=0.4)                    # 0.4 is the reward before training
>>> curve.verdict.value, round(curve.params["ceiling"], 2)
('ok', 0.6)
>>> low, high = curve.interval("ceiling")
>>> low < 0.602 < high
True
>>> [later] = reward_at(curve, [32000])                        # a forecast, with the interval of a new evaluation
>>> round(later.reward.value, 2), later.reward.low < 0.6 < later.reward.high
(0.6, True)
>>> [needed] = compute_for(curve, [0.7])
>>> needed.compute is None
True
>>> slower = fit(compute, [0.411, 0.427, 0.44, 0.454, 0.473, 0.488, 0.503, 0.51, 0.517, 0.522], start=0.4)
>>> compare({"new": curve, "old": slower}).pairs[0].verdict
'new has the higher ceiling'
"""

from scalerl.curves.compare import (
    PAPER_MARGIN,
    Comparison,
    Pair,
    Standing,
    Target,
    compare,
    compare_by_paper,
    linearise,
)
from scalerl.curves.draws import Value, tails
from scalerl.curves.fit import Fit, fit, refit
from scalerl.curves.forecast import (
    At,
    Reach,
    Score,
    Stopping,
    compute_for,
    conclusions,
    doubling,
    reward_at,
    score,
    stopping,
)
from scalerl.curves.forms import FORMS
from scalerl.curves.model import MODEL, Kind
from scalerl.curves.notes import Note, NoteKind, PairKind, Verdict, find_note, note, note_json
from scalerl.curves.paper import Grid
from scalerl.curves.priors import Prior
from scalerl.curves.words import note_text, pair_verdict

__all__ = [
    "FORMS", "MODEL", "PAPER_MARGIN", "At", "Comparison", "Fit", "Grid", "Kind", "Note",
    "NoteKind", "Pair", "PairKind", "Prior", "Reach", "Score", "Standing", "Stopping", "Target", "Value", "Verdict",
    "compare", "compare_by_paper", "compute_for", "conclusions", "doubling", "find_note",
    "fit", "linearise", "note", "note_json", "note_text", "pair_verdict", "refit", "reward_at", "score",
    "stopping", "tails",
]  # fmt: skip
