"""Forecasts inside other trainers: one line for transformers and TRL, or a few lines in any loop.

    from scalerl.callbacks import ForecastCallback          transformers and TRL
    from scalerl.callbacks import LiveForecast              any loop: add(compute, reward), then outlook()
    from scalerl.callbacks import follow                    a log or tracker's run while it is written
    from scalerl.callbacks import RunHealth                 a run of scalerl.train, in an observer

Importing this loads neither transformers nor torch; ForecastCallback loads transformers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from scalerl.callbacks.follow import follow
from scalerl.callbacks.forecast import Forecast
from scalerl.callbacks.live_forecast import LiveForecast

if TYPE_CHECKING:
    from scalerl.callbacks.health import RunHealth
    from scalerl.callbacks.trainer import ForecastCallback

__all__ = ["Forecast", "ForecastCallback", "LiveForecast", "RunHealth", "follow"]


_MODULES = {"ForecastCallback": "trainer", "RunHealth": "health"}
"""Where the names are that need more than a forecast does; they are imported when used."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"scalerl.callbacks.{_MODULES[name]}"), name)
