"""The bank of public curves, and the curves that are kept apart for releases."""

import csv
import importlib

import pytest

bank, release = map(importlib.import_module, ("bank", "release"))
ROWS = list(csv.DictReader((bank.BANK / "curves.csv").read_text().splitlines()))


def test_every_curve_says_where_it_is_from():
    assert {row["licence"] for row in ROWS} == {"Apache-2.0", "MIT"}
    assert all(row[name] for row in ROWS for name in ("curve", "kind", "source", "algorithm", "axis", "measured"))
    assert len({row["curve"] for row in ROWS}) == len(ROWS)


def test_points_are_those_of_the_table():
    curves = {curve.curve: curve for curve in (*bank.load(), *bank.load(reserved=True))}
    assert {row["curve"]: int(row["points"]) for row in ROWS} == {
        name: len(curve.reward) for name, curve in curves.items()
    }
    assert all(curve.compute[0] > 0 and len(curve.reward) >= bank.LEAST for curve in curves.values())


def test_reserved_curves_are_those_of_the_seed():
    every = (*bank.load(), *bank.load(reserved=True))
    reserved = {curve.curve for curve in bank.load(reserved=True)}
    assert reserved == {name for family, num in bank.NUM_RESERVED.items() for name in bank.drawn(every, family, num)}
    assert not reserved & {curve.curve for curve in bank.load()}
    assert reserved == {row["curve"] for row in ROWS if row["reserved"] == "True"}


def test_version_is_scored_once(tmp_path, monkeypatch):
    few = tuple(
        curve for curve in bank.load() if curve.curve in ("scalerl/tools/calculator-seed0", "agentgym/alfworld/grpo")
    )
    monkeypatch.setattr(release, "load", lambda reserved: few)
    record = tmp_path / "releases.jsonl"
    release.score(record, "1.0", reserved=False)
    [row] = release.records(record)
    assert row["sets"]["ours"]["half"]["scalerl"]["runs"] == 1
    assert 0.0 <= row["sets"]["ours"]["half"]["scalerl"]["inside"] <= 1.0
    assert len(list(release.table(record))) == 2 + 2 * len(release.CUTS)
    with pytest.raises(SystemExit, match="has been scored"):
        release.score(record, "1.0", reserved=False)
