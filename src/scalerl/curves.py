"""Fit, forecast, decide and compare reward-against-compute curves: the public names of scalerl.forecast.curves."""

from scalerl.forecast.curves import *  # noqa: F403
from scalerl.forecast.curves import __all__ as __all__
