"""Fit, forecast and compare reward-against-compute curves. numpy and scipy only; imports nothing else of scalerl."""

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
