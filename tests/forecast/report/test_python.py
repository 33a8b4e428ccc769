"""`scalerl.read`: runs with methods, answers with the values of --json, errors that name arguments."""

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest

import scalerl
from scalerl.callbacks import LiveForecast
from scalerl.errors import InputError, option, options_as_arguments
from scalerl.forecast.report.python import Runs

EXAMPLE = str(files("scalerl") / "assets" / "example_runs.csv")


@pytest.fixture(scope="module")
def runs() -> Runs:
    return scalerl.read(EXAMPLE, x="hours", y="score", by="recipe")


def test_answers_have_the_values_of_json_as_attributes(runs: Runs):
    answer = runs.fit(at=[100], level=0.8)
    (first, second) = answer.curves
    assert (first.name, first.state, second.action) == ("joint", "levelling off", "go on")
    assert first.ceiling.low < first.ceiling.value < first.ceiling.high
    assert first["ceiling"]["low"] == first.ceiling.low
    assert first.at[0].compute == 100
    assert answer.fits["fixed"].params["ceiling"] == second.ceiling.value
    with pytest.raises(AttributeError):
        _ = first.height


def test_answers_print_as_the_commands_do(runs: Runs):
    assert repr(runs) == "Runs(score over hours; joint: 122 points; fixed: 83 points)"
    answer = runs.compare()
    assert answer.pairs[0].winner == answer.rankings[0].winner == "fixed"
    assert answer.sections[0].blocks[0].text in repr(answer).replace("\n", " ")
    assert "<pre" in answer._repr_html_()
    assert "midpoint" in answer.explain()
    assert "midpoint" not in repr(answer)
    assert f"{answer.curves[0].ceiling.low!r}" in repr(answer.curves[0].ceiling)


WRONG: dict[str, tuple[Callable[[Runs], object], str]] = {
    "wrong name": (lambda runs: runs.fit(wrth=1), "did you mean worth"),
    "wrong name of read": (lambda runs: scalerl.read(EXAMPLE, bye="recipe"), "did you mean by"),  # type: ignore[call-arg]
    "wrong name of live": (lambda runs: LiveForecast(levl=0.9), "did you mean level"),
    "text for a number": (lambda runs: runs.compare(at="soon"), "'soon'"),
    "unknown unit": (lambda runs: runs.forecast(at="100Z"), "'100Z'"),
    "several for one": (lambda runs: runs.compare(at=[1, 2]), "one number"),  # type: ignore[arg-type]
    "text for a share": (lambda runs: runs.fit(level="high"), "'high'"),
    "unknown choice": (lambda runs: runs.fit(method="papr"), "paper"),
    "argument without a name": (lambda runs: runs.fit(5), "fit()"),  # type: ignore[misc]
    "text for a reward": (lambda runs: LiveForecast().add(1, "0.3"), "'0.3'"),  # type: ignore[arg-type]
    "number for a path": (lambda runs: scalerl.read(5), "path"),  # type: ignore[arg-type]
    "unknown rows": (lambda runs: runs.compare().to_frame("pears"), "pairs"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_argument_is_answered_with_the_right_one(runs: Runs, kind: str):
    call, right = WRONG[kind]
    with pytest.raises(InputError) as refused:
        call(runs)
    assert right in str(refused.value)


def test_answers_are_frames(runs: Runs):
    pytest.importorskip("pandas")
    answer = runs.compare()
    assert list(answer.to_frame().name) == ["joint", "fixed"]
    assert list(answer.to_frame("pairs").winner) == ["fixed"]


def test_forecast_backtest_frame_and_picture(runs: Runs, tmp_path: Path):
    later = runs.forecast(at=100).curves[1].at[0].reward
    assert later.low < 0.96 < later.high
    assert runs.forecast("100h", reach=0.99).curves[1].at[0].reward == later
    assert [row.fraction for row in runs.backtest(0.5).curves[0].fractions] == [0.5]
    assert runs.plot(tmp_path / "a.png").axes
    assert (tmp_path / "a.png").stat().st_size > 10_000
    frame = runs.to_frame()
    assert list(frame.columns) == ["curve", "run", "hours", "score"]
    assert len(frame) == 205


def test_errors_name_options_as_arguments():
    with pytest.raises(InputError, match=r"\(x=\): gpus=N builds it"):
        scalerl.read(EXAMPLE, x="gpu_hours").fit()
    with pytest.raises(InputError, match=r"split one with by=COLUMN"):
        scalerl.read(EXAMPLE, x="hours", y="score", seed="recipe").compare()
    # And again as the command line does.
    assert f"{option:run-spread}, {option:method paper}" == "--run-spread, --method paper"
    with options_as_arguments():
        assert f"{option:run-spread}, {option:method paper}" == 'run_sd=, method="paper"'
        assert f"{option:y-scale none}, {option:gpus N}, {option:start 1e+20}" == 'y_scale="none", gpus=N, start=1e+20'


def test_sentences_name_options_as_arguments(runs: Runs):
    details = runs.compare().explain()
    assert "override with worth=" in details
    assert "--" not in details
    assert "Add .explain() for the details." in repr(runs.compare())
    assert "override with x= and y=" in repr(scalerl.read(EXAMPLE, by="recipe").fit())
