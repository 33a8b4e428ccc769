"""Forecasts are logged to real projects of wandb (offline) and trackio, whose packages `make test-slow` installs."""

import sys
from pathlib import Path

import pytest
from log_texts import rising

from scalerl.callbacks.publish import columns_of, publish, tracker_of
from scalerl.errors import InputError, UsageError
from scalerl.forecast import logs
from scalerl.forecast.logs import Selection
from scalerl.forecast.report.analyse import analyse_fit
from scalerl.forecast.report.options import FitOptions
from scalerl.forecast.report.results import CurveResult


@pytest.fixture(scope="module")
def curves(tmp_path_factory: pytest.TempPathFactory) -> tuple[CurveResult, ...]:
    path = tmp_path_factory.mktemp("log") / "base.csv"
    path.write_text("step,eval/acc\n" + "".join(f"{at},{reward}\n" for at, reward in enumerate(rising(30), start=1)))
    return tuple(analyse_fit(logs.read([path], Selection()), FitOptions(), []).curves)


def test_line_goes_beyond_the_data_within_its_interval(curves: tuple[CurveResult, ...]) -> None:
    line = columns_of(curves[0])
    assert (line["compute"][0], line["compute"][-1]) == (pytest.approx(1), pytest.approx(120))
    assert all(
        low <= middle <= high for middle, low, high in zip(line["reward"], line["low"], line["high"], strict=True)
    )


@pytest.mark.parametrize("address", ["runs/first", "wandb:", "mlflow:a"])
def test_address_names_a_project(address: str) -> None:
    with pytest.raises(UsageError, match="is not the address of a project"):
        tracker_of(address)


def test_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(InputError, match=r"^trackio:a is written through its package: pip install trackio\.$"):
        tracker_of("trackio:a")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # other people's
def test_wandb_run_has_a_panel_and_a_summary(
    curves: tuple[CurveResult, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    assert publish(curves, "wandb:me/rl") == ["base forecast"]
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    (table,) = file.parent.glob("files/media/table/*.json")
    assert "measured" in table.read_text()
    assert b"forecast/ceiling_low" in file.read_bytes()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_trackio_forecasts_are_not_read_as_curves(curves: tuple[CurveResult, ...], trackio_folder: Path) -> None:
    trackio = pytest.importorskip("trackio", reason="trackio is not installed")
    run = trackio.init(project="rl", name="base")
    for step, reward in enumerate(rising(30), start=1):
        run.log({"eval/acc": reward}, step=step)
    run.finish()
    assert publish(curves, "trackio:rl") == ["base forecast"]
    (series,) = logs.read(["trackio:rl"], Selection())
    assert series.reward.tolist() == pytest.approx(rising(30))
    assert (trackio_folder / "rl.db").is_file()
