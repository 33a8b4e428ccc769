"""Inference from several curves together: the public names of scalerl.forecast.several."""

from scalerl.forecast.several import *  # noqa: F403
from scalerl.forecast.several import __all__ as __all__
