"""Fit, forecast and compare reward-against-compute curves. numpy and scipy only; imports nothing else of scalerl."""

from scalerl.curves.fit import Fit, fit
from scalerl.curves.forms import FORMS

__all__ = ["FORMS", "Fit", "fit"]
