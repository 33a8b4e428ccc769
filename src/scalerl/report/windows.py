"""Windows: which part of each curve is fitted, and which part tests the forecast."""

from dataclasses import dataclass, replace

import numpy as np

from scalerl.curves import Fit
from scalerl.logs.series import Selection, Series
from scalerl.report.inputs import Material
from scalerl.report.numbers import compute_text

SHARES = (0.25, 0.5)
ALL = "all"
HELD_OUT = "held-out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Which part of each curve is fitted; what lies after it tests the forecast."""

    key: str
    label: str
    share: float | None = None
    """Share of each curve's largest compute; None for all of it."""
    test_share: float = 0.0
    """What lies between the window and this share of the compute neither makes the forecast nor tests it."""
    until: float | None = None
    """Instead of `share`: a compute on the main axis, equal for all curves."""
    test_from: float | None = None
    """Instead of `test_share`, likewise."""

    def of(self, main: Series) -> "Window":
        """Return the window of one curve, in shares of its own compute; `main` is the curve on the main axis."""
        largest = float(main.compute.max(initial=0.0))
        if largest <= 0 or (self.until is None and self.test_from is None):
            return self
        share = self.share if self.until is None else min(self.until / largest, 1.0)
        test_share = self.test_share if self.test_from is None else min(self.test_from / largest, 1.0)
        return replace(self, share=share, test_share=test_share)


def windows_of(material: Material, selection: Selection) -> tuple[tuple[Window, ...], Window]:
    """Return the windows to choose among, all points last, and the one to show first."""
    shares = [Window(key=f"{share:.0%}", label=f"first {share:.0%}", share=share) for share in SHARES]
    everything = Window(key=ALL, label="all points")
    if selection.holdout is not None:
        own = Window(key=HELD_OUT, label="without held-out rows")
        return (*shares[1:], own, everything), own
    until, least = material.fit_share, {"test_share": material.test_share, "test_from": material.test_compute}
    if material.fit_compute is not None:
        label = f"up to {compute_text(material.fit_compute)}"
        own = Window(key=HELD_OUT, label=label, until=material.fit_compute, **least)
        return (*shares, own, everything), own
    if until >= 1:
        return (*shares, everything), everything
    own = Window(key=HELD_OUT, label=f"first {until:.0%}", share=until, **least)
    others = [window for window in shares if abs((window.share or 0.0) - until) > 0.01]
    return (*sorted([*others, own], key=lambda window: window.share or 0.0), everything), own


def later_points(series: Series, done: Fit, window: Window) -> tuple[np.ndarray, np.ndarray]:
    """Return the points beyond the fitted compute, which test the forecast."""
    least = window.test_share * series.compute.max(initial=0.0)
    later = series.compute > max(done.scale * (1 + 1e-9), least * (1 - 1e-9))
    return (
        np.concatenate([series.compute[later], series.holdout_compute]),
        np.concatenate([series.reward[later], series.holdout_reward]),
    )
