"""A prior file from analysed curves."""

from collections.abc import Sequence
from typing import Any

from scalerl.joint.prior_file import prior_content
from scalerl.report.pooling import check_one_axis
from scalerl.report.results import CurveResult


def prior_of(curves: Sequence[CurveResult]) -> dict[str, Any]:
    """Return the content of a prior file for these curves."""
    check_one_axis([curve.series for curve in curves], "a prior needs runs on one axis of compute")
    fits = {curve.name: curve.fit for curve in curves if curve.fit is not None}
    return prior_content(fits, curves[0].series.x_label)
