"""The paper's own procedure: its grids, its rule for pairs, and `--method paper` of the commands."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from known import known

from scalerl.cli import main
from scalerl.forecast.curves import Grid, compare_by_paper, fit
from scalerl.forecast.curves.paper import LARGE_MIDPOINTS, default_grid

FEW = Grid(ceilings=np.array([0.60, 0.605, 0.61, 0.645, 0.65]))  # a tenth of the grid, for a tenth of the time


def curve(ceiling: float, exponent: float, midpoint: float, until: float, num: int = 12) -> tuple[Any, Any]:
    compute = np.linspace(until / num, until, num)
    return compute, 0.4 + (ceiling - 0.4) / (1 + (midpoint / compute) ** exponent)


def test_midpoints_of_large_runs_lie_on_the_papers_enlarged_grid():
    # Table 1: 4242, 10909 and 11272 are whole parts of 35, 90 and 93 steps of linspace(0, 12000, 100).
    assert [int(LARGE_MIDPOINTS[place - 1]) for place in (35, 90, 93)] == [4242, 10909, 11272]
    compute, reward = curve(0.645, 1.7, 10_909.09, 16_000)
    result = fit(compute, reward, start=0.4, method="paper", grid=FEW)
    assert int(result.params["midpoint"]) == 10_909
    assert result.params["ceiling"] == pytest.approx(0.645)


@pytest.mark.parametrize("unit", [1 / 60, 3.6e18])
def test_the_unit_of_compute_does_not_matter(unit: float):
    """Minutes or FLOPs for GPU-hours: the data are noisy, so that other midpoints would give another ceiling."""
    compute, reward = curve(0.645, 1.7, 5000.0, 12_000, num=9)
    reward = reward + 0.004 * np.random.default_rng(0).standard_normal(9)
    one, other = (fit(factor * compute, reward, start=0.4, method="paper", grid=FEW) for factor in (1.0, unit))
    assert other.params["ceiling"] == one.params["ceiling"]
    assert other.params["exponent"] == pytest.approx(one.params["exponent"], rel=1e-3)
    assert other.params["midpoint"] == pytest.approx(unit * one.params["midpoint"])


@pytest.mark.parametrize(("bounds", "per_cent"), [((0.0, 1.0), (0.0, 100.0)), (None, None)])
@pytest.mark.parametrize("start", [0.2, 0.4])
def test_the_unit_of_the_reward_does_not_matter(bounds, per_cent, start: float):
    """The ceilings that are tried are the same for shares and for per cent, so the best one is, too."""
    _, reward = curve(0.612, 1.7, 2500.0, 8_000)
    one = default_grid(start, reward, bounds).ceilings
    two = default_grid(100 * start, 100 * reward, per_cent).ceilings
    np.testing.assert_allclose(two, 100 * one)


def test_midpoints_of_smaller_runs_stay_on_the_small_grid():
    compute, reward = curve(0.61, 1.92, 2542.42, 8_000)
    assert int(fit(compute, reward, start=0.4, method="paper", grid=FEW).params["midpoint"]) == 2542


def test_papers_rule_for_pairs():
    fits = {
        "higher": fit(*curve(0.65, 1.9, 2500, 16_000), start=0.4, method="paper", grid=FEW),
        "steep": fit(*curve(0.61, 2.4, 2500, 16_000), start=0.4, method="paper", grid=FEW),
        "flat": fit(*curve(0.60, 1.6, 2500, 16_000), start=0.4, method="paper", grid=FEW),
    }
    answers = {(pair.a, pair.b): (pair.by_ceiling, pair.winner) for pair in compare_by_paper(fits).pairs}
    assert answers == {
        ("higher", "steep"): (True, "higher"),
        ("higher", "flat"): (True, "higher"),
        ("steep", "flat"): (False, "steep"),
    }
    del fits["higher"]
    compared = compare_by_paper(fits)
    assert compared.shared_ceiling == pytest.approx(0.605)
    steep, flat = known(compared.pairs[0].exponents)
    assert steep > flat


def test_one_ceiling_is_held_fixed_and_the_grids_edge_is_noted():
    points = curve(0.61, 1.92, 2542.42, 16_000)
    held = fit(*points, start=0.4, method="paper", grid=Grid(ceilings=np.array([0.62])))
    assert (held.params["ceiling"], held.edges) == (0.62, ())
    edge = fit(*points, start=0.4, method="paper", grid=Grid(ceilings=np.linspace(0.5, 0.6, 3)))
    assert edge.edges == ("ceiling",)
    assert not edge.has_intervals
    assert np.isnan(edge.interval("ceiling")).all()


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["scalerl", *map(str, words)])
    code: Any = 0
    try:
        main()
    except SystemExit as error:
        code = error.code or 0
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_commands_take_the_papers_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "runs.csv"
    lines = ["recipe,gpu_hours,pass_rate"]
    for name, exponent in (("a", 2.4), ("b", 1.6)):
        lines += [f"{name},{c:.6g},{r:.6g}" for c, r in zip(*curve(0.61, exponent, 2500, 16_000), strict=True)]
    file.write_text("\n".join(lines))
    words = (file, "--x", "gpu_hours", "--y", "pass_rate", "--by", "recipe", "--start", "0.4", "--method", "paper")
    grid = ("--ceiling", "0.6,0.62")
    code, out, err = run(monkeypatch, capsys, "compare", *words, *grid, "--json")
    assert (code, err) == (0, "")
    printed = json.loads(out)
    assert [row["ceiling"]["value"] for row in printed["curves"]] == pytest.approx([0.61, 0.61])
    assert printed["curves"][0]["ceiling"]["low"] is None
    assert [row[key] for row in printed["curves"] for key in ("state", "action", "p_worth")] == [None] * 6
    assert (printed["pairs"][0]["by_ceiling"], printed["pairs"][0]["winner"]) == (False, "a")
    code, out, _ = run(monkeypatch, capsys, "fit", *words, "--ceiling", "0.605", "--json")
    assert [row["ceiling"]["value"] for row in json.loads(out)["curves"]] == [0.605, 0.605]
    code, out, err = run(monkeypatch, capsys, "backtest", *words, *grid, "--where", "recipe=a", "--json")
    assert (code, err) == (0, "")
    (row,) = json.loads(out)["curves"]
    assert [part["fraction"] for part in row["fractions"]] == [0.25, 0.5, 0.75]
    assert row["fractions"][-1]["rmse"] < 1e-3
    asked = ("--at", "32000", "--where", "recipe=a", "--json")
    code, out, _ = run(monkeypatch, capsys, "forecast", *words, *grid, *asked)
    assert code == 0
    (row,) = json.loads(out)["curves"]
    assert (row["state"], row["at"][0]["reward"]["low"]) == (None, None)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--method", "paper", "--form", "power"), "fits the sigmoid"),
        (("--method", "grid"), "must be posterior or paper"),
        (("--ceiling", "0.45,0.9"), "--method paper"),
        (("--method", "paper", "--ceiling", "0.9,0.45"), "the lower one first"),
        (("--method", "paper", "--ceiling", "high"), "--ceiling takes a number"),
        (("--run-spread", "-1"), "--run-spread must be positive"),
    ],
)
def test_what_does_not_go_together_is_refused(monkeypatch, capsys, tmp_path, words, reason):
    file = tmp_path / "run.csv"
    file.write_text("step,reward\n1,0.4\n")
    code, _, err = run(monkeypatch, capsys, "fit", file, *words)
    assert code == 2
    assert reason in err


def test_the_papers_method_needs_a_start(monkeypatch, capsys, tmp_path):
    file = tmp_path / "run.csv"
    file.write_text("step,reward\n" + "".join(f"{step},{0.4 + 0.01 * step}\n" for step in range(1, 10)))
    code, _, err = run(monkeypatch, capsys, "fit", file, "--method", "paper")
    assert (code, "add --start VALUE" in err) == (2, True)
