"""Alarms with the step at which they began and ended."""

import re
from importlib.resources import files
from typing import Any, get_args

import numpy as np
import pytest

from scalerl.report.board.alarms import Kind, curve_episodes, forecast_moved, listed, rolling_means, signal_episodes
from scalerl.report.board.charts import LINES, with_empty
from scalerl.report.board.columns import Columns
from scalerl.report.signals import SIGNALS
from scalerl.report.signals import alarms as present_alarms


def columns(**values: Any) -> dict[str, np.ndarray]:
    num = len(next(iter(values.values())))
    named = {name.replace("__", "/"): np.asarray(each, dtype=float) for name, each in values.items()}
    return {"step": np.arange(1.0, num + 1), **named}


def episodes(data: dict[str, np.ndarray], max_lag: float | None = None):
    return signal_episodes(data, remedies={}, max_lag=max_lag)


def test_alarm_began_where_its_mean_passed_the_limit():
    cut = [0.02] * 40 + [0.3] * 30
    (episode,) = episodes(columns(rollout__truncated_frac=cut))
    assert (episode.kind, episode.ended) == ("truncated", None)
    means = rolling_means(np.array(cut))
    assert episode.began == 1 + int(np.argmax(means > 0.10))
    assert episode.began is not None
    assert 40 < episode.began < 60


def test_alarm_that_is_over_has_its_end():
    (episode,) = episodes(columns(loss__kl=[0.01] * 20 + [2.0] * 5 + [0.01] * 60))
    assert episode.kind == "mismatch"
    assert episode.began is not None
    assert episode.ended is not None
    assert episode.began < episode.ended < 85


def test_alarm_of_a_low_signal():
    (episode,) = episodes(columns(loss__entropy=[0.4] * 10 + [0.0001] * 40))
    assert (episode.kind, episode.ended) == ("entropy", None)


def test_lasting_alarms_are_those_of_the_run_itself():
    rows = [{"rollout/truncated_frac": 0.4, "loss/entropy": 0.001, "loss/kl": 0.5} for _ in range(30)]
    data = columns(**{key.replace("/", "__"): [row[key] for row in rows] for key in rows[0]})
    lasting = {episode.kind for episode in episodes(data) if episode.ended is None}
    assert lasting == {alarm.kind for alarm in present_alarms(rows, {})}


def test_every_signal_and_line_is_read_from_the_rows():
    read = Columns()
    watched = {signal.key for signal in SIGNALS if signal.alarm is not None} | {key for key, _, _ in LINES}
    read.append({"step": 1, "batch/effective": 4, **dict.fromkeys(watched, 0.5)})
    assert watched <= with_empty(read.arrays()).keys()


def test_every_kind_of_alarm_has_a_name_on_the_page():
    script = files("scalerl").joinpath("assets/board/run.js").read_text()
    named = re.findall(r"(\w+): \"", script.partition("const ALARMS = {")[2].partition("};")[0])
    of_runs, of_pages = (get_args(part) for part in get_args(Kind))
    # The page has no alarm about generator and learner at equal weights: one step of a run decides it.
    assert set(named) == {*of_runs, *of_pages} - {"backend"}


def test_lag_beyond_the_recipe_is_an_alarm():
    data = columns(rollout__lag_max=[7.0] * 10 + [30.0] * 30)
    (episode,) = episodes(data, max_lag=8)
    assert (episode.kind, episode.ended) == ("lag", None)
    assert episode.value is not None
    assert episode.value > 8
    assert episodes(data, max_lag=40) == []


def test_few_rows_raise_no_alarm():
    assert episodes(columns(rollout__truncated_frac=[0.9] * 4)) == []
    assert episodes({}) == []


def row(num: int, value: float, low: float, high: float, *, is_ok: bool = True) -> dict[str, Any]:
    told = {"value": value, "low": low, "high": high}
    return {"num": num, "compute": float(num), "is_ok": is_ok, "end": told, "ceiling": told}


def test_forecast_that_left_its_interval_is_found():
    rows = [row(4, 0.5, 0.4, 0.6), row(6, 0.55, 0.5, 0.6), row(8, 0.7, 0.65, 0.75), row(10, 0.72, 0.7, 0.74)]
    earlier, later = forecast_moved(rows) or ({}, {})
    assert (earlier["num"], later["num"]) == (4, 8)


def test_forecast_that_came_back_raises_no_alarm():
    rows = [row(4, 0.5, 0.4, 0.6), row(6, 0.7, 0.5, 0.8), row(8, 0.55, 0.5, 0.6)]
    assert forecast_moved(rows) is None


def test_ceilings_count_only_where_they_are_known():
    rows = [row(4, 0.5, 0.4, 0.6, is_ok=False), row(6, 0.9, 0.8, 0.95, is_ok=False)]
    assert forecast_moved([{**each, "end": None} for each in rows]) is None


@pytest.mark.parametrize("fall", [None, 12.0])
def test_collapse_is_an_alarm_of_the_curve(fall: float | None):
    kinds = [episode.kind for episode in curve_episodes("main", {"fall": fall, "drop": fall and 0.03}, [])]
    assert kinds == ([] if fall is None else ["fall"])


def test_list_has_lasting_alarms_first():
    data = columns(loss__kl=[0.01] * 20 + [2.0] * 5 + [0.01] * 60, rollout__truncated_frac=[0.5] * 85)
    assert [each["ended"] is None for each in listed(episodes(data))] == [True, False]
