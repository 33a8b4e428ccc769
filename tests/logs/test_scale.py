"""Advice on --y-scale: 100 only for percentages, and what is advised works."""

import json
import re
from pathlib import Path

import pytest

from scalerl.errors import InputError
from scalerl.logs.read import read_table
from scalerl.logs.scale import fitting_scale
from scalerl.logs.series import Selection, series_from


@pytest.mark.parametrize(
    "column, low, high, scale",
    [
        ("reward", 0.4, 1.5, "none"),
        ("reward", 0.1, 5.0, "none"),
        ("reward", -0.5, 2.5, "none"),
        ("reward", -0.5, 0.9, "pm1"),
        ("reward", 12.0, 61.0, "100"),
        ("val/accuracy", 2.0, 9.0, "100"),
        ("eval/aime/pass@1", 0.9, 6.5, "100"),
        ("reward", 3.0, 250.0, "none"),
        ("reward", 0.0, 1.0, "1"),
    ],
)
def test_scale_fits_the_values(column: str, low: float, high: float, scale: str) -> None:
    assert fitting_scale(column, [low, (low + high) / 2, high]) == scale


def test_sums_of_rewards_are_never_divided_by_100(tmp_path: Path) -> None:
    rows = [
        {"step": step, "reward": 0.4 + step / 20, "rewards/format": step / 50, "rewards/correct_func": step / 30}
        for step in range(1, 23)
    ]
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"log_history": rows}))
    with pytest.raises(InputError) as caught:
        series_from([read_table(path)], Selection())
    advice = str(caught.value)
    assert "'reward' runs from 0.45 to 1.5, outside [0, 1]" in advice
    assert "--y-scale 100" not in advice
    assert "say --y-scale none, or choose a column in [0, 1] such as --y rewards/correct_func." in advice
    [series] = series_from([read_table(path)], Selection(y_scale="none"))
    assert series.reward.max() == 1.5
    column = re.findall(r"--y (\S+)\.", advice)[0]
    [series] = series_from([read_table(path)], Selection(y=column))
    assert series.reward.max() == pytest.approx(22 / 30)
