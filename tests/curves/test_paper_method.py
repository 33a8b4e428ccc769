"""The paper's own procedure: its grids, its rule for pairs, and `--method paper` of the commands."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scalerl.curves.least_squares import PAPER_LARGE_MIDPOINTS
from scalerl.curves.pairs.paper_rule import compare_by_paper

from scalerl.cli import main
from scalerl.curves import fit

CEILINGS = np.array([0.60, 0.605, 0.61, 0.645, 0.65])


def curve(ceiling: float, exponent: float, midpoint: float, until: float, num: int = 12) -> tuple[Any, Any]:
    compute = np.linspace(until / num, until, num)
    return compute, 0.4 + (ceiling - 0.4) / (1 + (midpoint / compute) ** exponent)


@pytest.fixture
def few_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the grid, for a tenth of the time."""
    from scalerl.curves import least_squares

    defaults = dict(least_squares.paper_grid.__kwdefaults__ or {}) | {"ceilings": CEILINGS}
    monkeypatch.setattr(least_squares.paper_grid, "__kwdefaults__", defaults)


def test_midpoints_of_large_runs_lie_on_the_papers_enlarged_grid(few_ceilings: None):
    # Table 1: 4242, 10909 and 11272 are whole parts of 35, 90 and 93 steps of linspace(0, 12000, 100).
    assert [int(PAPER_LARGE_MIDPOINTS[place - 1]) for place in (35, 90, 93)] == [4242, 10909, 11272]
    compute, reward = curve(0.645, 1.7, 10_909.09, 100_000)
    result = fit(compute, reward, start=0.4, method="paper")
    assert int(result.params["midpoint"]) == 10_909
    assert result.params["ceiling"] == pytest.approx(0.645)


def test_midpoints_of_smaller_runs_stay_on_the_small_grid(few_ceilings: None):
    compute, reward = curve(0.61, 1.92, 2542.42, 16_000)
    assert int(fit(compute, reward, start=0.4, method="paper").params["midpoint"]) == 2542


def test_papers_rule_for_pairs(few_ceilings: None):
    fits = {
        "higher": fit(*curve(0.65, 1.9, 2500, 16_000), start=0.4, method="paper"),
        "steep": fit(*curve(0.61, 2.4, 2500, 16_000), start=0.4, method="paper"),
        "flat": fit(*curve(0.60, 1.6, 2500, 16_000), start=0.4, method="paper"),
    }
    verdicts = {(pair.a, pair.b): (pair.kind, pair.winner) for pair in compare_by_paper(fits).pairs}
    assert verdicts == {
        ("higher", "steep"): ("higher_ceiling", "higher"),
        ("higher", "flat"): ("higher_ceiling", "higher"),
        ("steep", "flat"): ("more_efficient", "steep"),
    }
    del fits["higher"]
    compared = compare_by_paper(fits)
    assert compared.shared_ceiling == pytest.approx(0.605)
    assert compared.shared_exponents["steep"].value > compared.shared_exponents["flat"].value


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], few_ceilings: None
):
    file = tmp_path / "runs.csv"
    lines = ["recipe,gpu_hours,pass_rate"]
    for name, exponent in (("a", 2.4), ("b", 1.6)):
        lines += [f"{name},{c:.6g},{r:.6g}" for c, r in zip(*curve(0.61, exponent, 2500, 16_000), strict=True)]
    file.write_text("\n".join(lines))
    words = (file, "--x", "gpu_hours", "--y", "pass_rate", "--by", "recipe", "--start", "0.4", "--method", "paper")
    code, out, err = run(monkeypatch, capsys, "compare", *words, "--json")
    assert (code, err) == (0, "")
    printed = json.loads(out)
    assert [row["ceiling"]["value"] for row in printed["curves"]] == pytest.approx([0.61, 0.61])
    assert printed["curves"][0]["ceiling"]["low"] is None
    assert (printed["pairs"][0]["kind"], printed["pairs"][0]["winner"]) == ("more_efficient", "a")
    code, out, _ = run(monkeypatch, capsys, "forecast", *words, "--at", "32000", "--where", "recipe=a")
    assert code == 0
    assert "levels off at 0.610 (no interval)" in out
    for refused, reason in (
        (("--form", "power"), "fits the sigmoid"),
        (("--method", "grid"), "must be posterior or paper"),
    ):
        code, _, err = run(monkeypatch, capsys, "fit", *words, *refused)
        assert code == 2
        assert reason in err
    code, _, err = run(monkeypatch, capsys, "fit", *words[:-4], "--method", "paper")
    assert (code, "add --start VALUE" in err) == (2, True)
