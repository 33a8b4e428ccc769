"""What a user types is in the unit of the log, or in the one that is written."""

from pathlib import Path

import numpy as np
import pytest

from scalerl.errors import InputError
from scalerl.forecast.logs import Selection, Series, read
from scalerl.forecast.logs.typed import compute_typed, difference_typed, reward_typed


def logged(path: Path, column: str, size: float = 1.0, scale: float = 1.0) -> list[Series]:
    """A run of 60B tokens, in a column that counts them in `size`."""
    tokens, rewards = np.linspace(1e9, 60e9, 20), np.linspace(0.41, 0.6, 20)
    rows = [f"{amount / size:g},{reward * scale:.4f}" for amount, reward in zip(tokens, rewards, strict=True)]
    path.write_text("\n".join([f"{column},pass_rate", *rows]))
    return read([path])


@pytest.mark.parametrize("typed", [100, "100", "100B", "0.1T", "100000M", "100000000k"])
def test_bare_number_is_in_the_unit_of_the_log(tmp_path: Path, typed: float | str):
    in_billions = logged(tmp_path / "log.csv", "tokens (B)", 1e9)
    assert compute_typed(typed, "at", in_billions) == pytest.approx(100e9)


def test_named_column_keeps_its_unit(tmp_path: Path):
    logged(tmp_path / "log.csv", "tokens (B)", 1e9)
    series = read([tmp_path / "log.csv"], Selection(x="tokens (B)"))
    assert compute_typed("100B", "at", series) == compute_typed(100, "at", series) == pytest.approx(100.0)


@pytest.mark.parametrize(("column", "size", "typed", "likely"), [
    ("tokens (B)", 1e9, "100e9", "100B"), ("tokens", 1.0, "100", "100B"), ("tokens", 1.0, 30, "30B"),
])  # fmt: skip
def test_number_a_hundred_times_outside_names_the_likely_unit(
    tmp_path: Path, column: str, size: float, typed: float | str, likely: str
):
    with pytest.raises(InputError) as refused:
        compute_typed(typed, "at", logged(tmp_path / "log.csv", column, size))
    assert f"{likely}?" in str(refused.value)


def test_hours_need_an_axis_of_time(tmp_path: Path):
    with pytest.raises(InputError):
        compute_typed("60h", "at", logged(tmp_path / "log.csv", "tokens", 1.0))
    assert compute_typed("60h", "at", logged(tmp_path / "hours.csv", "hours", 1e9)) == 60.0


def test_rewards_in_shares_and_per_cent():
    assert reward_typed("65%", "reach", (0.0, 1.0)) == 0.65
    assert reward_typed("65%", "reach", (0.0, 100.0)) == reward_typed(65, "reach", (0.0, 100.0)) == 65.0
    assert reward_typed("0.65%", "reach", (0.0, 100.0), [41.0, 60.0]) == 0.65
    for typed, bounds in ((65, (0.0, 1.0)), (0.65, (0.0, 100.0))):
        with pytest.raises(InputError) as refused:
            reward_typed(typed, "reach", bounds, [0.41 * bounds[1], 0.6 * bounds[1]])
        assert "65" in str(refused.value).partition("did you mean")[2]


def test_threshold_above_the_range_seen_is_refused(tmp_path: Path):
    shares = logged(tmp_path / "shares.csv", "tokens", 1.0)
    percent = logged(tmp_path / "percent.csv", "tokens", 1.0, 100.0)
    assert difference_typed("1%", "worth", shares) == pytest.approx(0.01)
    assert difference_typed("1%", "worth", percent) == difference_typed(1, "worth", percent) == 1.0
    with pytest.raises(InputError) as refused:
        difference_typed(1, "worth", shares)
    assert "1%?" in str(refused.value)
    with pytest.raises(InputError):
        difference_typed(30, "worth", percent)


def test_start_is_read_in_the_unit_of_the_log(tmp_path: Path):
    logged(tmp_path / "percent.csv", "tokens", 1.0, 100.0)
    for typed in (40, "40", "40%"):
        assert read([tmp_path / "percent.csv"], Selection(start=typed))[0].start == 40.0
    with pytest.raises(InputError):
        read([tmp_path / "percent.csv"], Selection(start=0.4))
