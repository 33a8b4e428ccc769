"""The scale of a reward: shares, per cent only for what is named as a rate, everything else as it is."""

from pathlib import Path

import pytest

from scalerl.logs.formats import read_table
from scalerl.logs.series import Selection, series_from


@pytest.mark.parametrize(
    "column, rewards, scale, kinds",
    [
        ("reward", (0.0, 0.5, 1.0), "1", []),
        ("reward", (0.4, 1.1, 1.5), "none", ["own_scale"]),
        ("reward", (-0.9, 0.1, 0.6), "none", ["own_scale"]),
        ("reward", (-150.0, 3.0, 150.0), "none", ["own_scale"]),
        ("reward", (12.0, 30.0, 61.0), "none", ["own_scale"]),
        ("pass_rate", (20.0, 50.0, 67.0), "100", ["percent"]),
        ("val/accuracy", (2.0, 5.0, 9.0), "100", ["percent"]),
        ("eval_win_rate_percent", (0.5, 30.0, 90.0), "100", ["percent"]),
        ("eval/aime/pass@1", (0.9, 3.0, 6.5), "100", ["percent"]),
        ("pass_rate", (0.4, 1.1, 1.5), "none", ["own_scale"]),
    ],
)
def test_scale_fits_the_values(
    tmp_path: Path, column: str, rewards: tuple[float, ...], scale: str, kinds: list[str]
) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f"tokens,{column}\n" + "".join(f"{at},{reward}\n" for at, reward in enumerate(rewards, start=1)))
    [series] = series_from([read_table(path)], Selection())
    assert (series.y_scale, series.bounded, [fact.kind for fact in series.facts]) == (scale, scale != "none", kinds)
    unit = 100 if scale == "100" else 1
    assert series.reward.tolist() == pytest.approx([reward / unit for reward in rewards])


def test_start_in_per_cent_is_a_share(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("tokens,pass_rate\n1,20\n2,30\n3,40\n")
    [series] = series_from([read_table(path)], Selection(start=15.0))
    assert (series.start, series.start_sd) == (0.15, 0.0)
