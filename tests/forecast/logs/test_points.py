"""The points of a run: what is counted, what is filled in, and which axis can be shown."""

from pathlib import Path

import numpy as np
import pytest
from read_logs import planned, write

from scalerl.forecast.logs.axes import can_be_main
from scalerl.forecast.logs.frame import Frame, objects
from scalerl.forecast.logs.points import points_of


def _points(step: list[float], tokens: list[float]) -> Frame:
    columns = {"y": np.full(len(step), 0.5), "step": np.array(step), "tokens": np.array(tokens)}
    return Frame(columns, objects("" for _ in step))


def test_points_have_roles_as_columns(tmp_path: Path) -> None:
    rows = [(step, 0.1 * step, 36, 100) for step in (1, 2, 3)]
    plan = planned(write(tmp_path / "a.csv", ("global_step,eval/acc,step_time,num_samples", rows)), gpus=2)
    points = points_of(plan, plan.frame, "a")
    assert points.numbers("step").tolist() == [1, 2, 3]
    assert points.numbers("gpu_hours") == pytest.approx([0.02, 0.04, 0.06])
    assert (points.numbers("num_samples").tolist(), points.words("run").tolist()) == ([100] * 3, ["a"] * 3)
    assert np.isnan(points.numbers("tokens")).all()


def test_amount_of_another_row_of_the_step_is_taken(tmp_path: Path) -> None:
    rows = [{"step": 0, "reward": 0.1}, {"step": 1, "tokens": 10}, {"step": 1, "reward": 0.2}]
    plan = planned(write(tmp_path / "a.jsonl", rows))
    assert points_of(plan, plan.frame, "a").numbers("tokens").tolist() == [0, 10, 10]


@pytest.mark.parametrize(
    ("step", "tokens", "expected"),
    [
        ([1, 2, 3], [10, 20, 30], True),
        ([1, 2, 3], [10, 20, 5], False),
        ([1, 2, 3], [10, 20, 19.5], True),
        ([1, 2, 3], [10, np.nan, np.nan], False),
        ([1, 2, 2], [10, 20, 5], True),
        ([1, 2, 3], [10, 10, 10], False),
    ],
    ids=["grows", "falls", "corrected", "sparse", "runs side by side", "constant"],
)
def test_axis_that_can_be_shown(step: list[float], tokens: list[float], expected: bool) -> None:
    assert can_be_main(_points(step, tokens), "tokens") == expected
