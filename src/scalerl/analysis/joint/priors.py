"""A prior file from analysed curves."""

from collections.abc import Sequence
from typing import Any

from scalerl.analysis.pooling import check_one_axis
from scalerl.analysis.results import CurveResult
from scalerl.joint.prior_file import prior_content


def prior_of(curves: Sequence[CurveResult]) -> dict[str, Any]:
    """Return the content of a prior file for these curves."""
    check_one_axis([curve.series for curve in curves], "a prior needs runs on one axis of compute")
    fits = {curve.name: curve.fit for curve in curves if curve.fit is not None}
    return prior_content(fits, curves[0].series.x_label)
