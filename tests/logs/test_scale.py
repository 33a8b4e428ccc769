"""The scale of a reward: shares, per cent only for what is named as a rate, everything else as it is."""

from pathlib import Path

import pytest

import scalerl
from scalerl.logs.formats import read_table
from scalerl.logs.series import Selection, series_from
from scalerl.logs.units import SCALES, YScale


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
    tmp_path: Path, column: str, rewards: tuple[float, ...], scale: YScale, kinds: list[str]
) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f"tokens,{column}\n" + "".join(f"{at},{reward}\n" for at, reward in enumerate(rewards, start=1)))
    [series] = series_from([read_table(path)], Selection())
    assert (series.y_scale, series.bounds, [fact.kind for fact in series.facts]) == (scale, SCALES[scale], kinds)
    assert series.reward.tolist() == list(rewards)


def _written(path: Path, unit: float = 1.0, low: float = 0.0) -> Path:
    """A sigmoid from a share of 0.2 to one of 0.7, in another unit."""
    rows = [(step, 0.2 + 0.5 / (1 + 10 / step) + 0.004 * (-1) ** step) for step in range(1, 61)]
    path.write_text("step,pass_rate\n" + "".join(f"{step},{low + unit * share}\n" for step, share in rows))
    return path


def test_answers_have_the_unit_of_the_log(tmp_path: Path) -> None:
    share = scalerl.read(_written(tmp_path / "share.csv"), start=0.2)
    percent = scalerl.read(_written(tmp_path / "percent.csv", 100), start=20)
    signed = scalerl.read(_written(tmp_path / "pm1.csv", 2, -1), start=-0.6, y_scale="pm1")
    [at], [percent_at], [signed_at] = (runs.forecast(100).curves for runs in (share, percent, signed))
    for key, reward in (("ceiling", lambda curve: curve.ceiling), ("at", lambda curve: curve.at[0].reward)):
        for end in ("value", "low", "high"):
            given = reward(at)[end]
            assert reward(percent_at)[end] == pytest.approx(100 * given, rel=1e-6), key
            assert reward(signed_at)[end] == pytest.approx(2 * given - 1, rel=1e-6), key
    assert percent_at.verdict == signed_at.verdict == at.verdict
    assert f"{percent_at.ceiling.value:.1f} [" in repr(percent.fit())
    assert percent.fit(form="log-linear").curves[0].ceiling.value == 100
    paper, percent_paper = (runs.fit(method="paper").curves[0].ceiling.value for runs in (share, percent))
    assert percent_paper == pytest.approx(100 * paper)


def test_curves_in_shares_and_in_per_cent_are_compared_as_shares(tmp_path: Path) -> None:
    paths = [_written(tmp_path / "a.csv"), _written(tmp_path / "b.csv", 100)]
    first, second = scalerl.read([str(path) for path in paths])
    assert (second.y_scale, second.reward.tolist()) == ("1", pytest.approx(first.reward.tolist()))


def test_column_has_one_unit_for_all_its_arms(tmp_path: Path):
    rows = [(arm, step, top * step / 20) for arm, top in (("good", 58.0), ("bad", 0.9)) for step in range(1, 21)]
    path = tmp_path / "arms.csv"
    path.write_text("arm,step,pass_rate\n" + "".join(f"{arm},{step},{rate}\n" for arm, step, rate in rows))
    scales = {series.name: series.y_scale for series in series_from([read_table(str(path))], Selection())}
    assert set(scales.values()) == {"100"}
    assert len(scales) == 2


def test_one_start_for_shares_and_per_cent_is_a_share(tmp_path: Path):
    for name, unit in (("share.csv", 1), ("percent.csv", 100)):
        lines = [f"{step},{unit * 0.6 * step / 20}" for step in range(1, 21)]
        (tmp_path / name).write_text("step,pass_rate\n" + "\n".join(lines) + "\n")
    tables = [read_table(str(tmp_path / name)) for name in ("share.csv", "percent.csv")]
    assert [series.start for series in series_from(tables, Selection(start=0.02))] == [0.02, 0.02]
