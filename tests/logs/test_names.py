"""Names of curves: the shortest that tell them apart, and labels that the user gives."""

from pathlib import Path
from typing import Any

import pytest

from scalerl.errors import InputError
from scalerl.logs.formats import read_tables
from scalerl.logs.names import curve_names, file_names
from scalerl.logs.series import Selection, series_from


def _csv(path: Path, header: str = "gpu_hours,reward", rows: str = "1,0.5\n2,0.6\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{header}\n{rows}")
    return path


def _names(*paths: Path, **options: Any) -> list[str]:
    return [series.name for series in series_from(read_tables(paths), Selection(**options))]


def test_numbers_of_by_carry_their_column(tmp_path: Path) -> None:
    path = _csv(tmp_path / "log.csv", "rho,arm,gpu_hours,reward", "0.7,a,1,0.5\n0.9,b,1,0.5\n")
    assert _names(path, by=("rho",)) == ["rho=0.7", "rho=0.9"]
    assert _names(path, by=("arm",)) == ["a", "b"]
    assert _names(path, by=("arm", "rho")) == ["a/rho=0.7", "b/rho=0.9"]


@pytest.mark.parametrize(
    "paths, names",
    [
        (["a/metrics.jsonl", "b/metrics.jsonl"], ["a", "b"]),
        (["x/a/metrics.jsonl", "y/a/metrics.jsonl"], ["x/a", "y/a"]),
        (["out/checkpoint-30/trainer_state.json"], ["out"]),
        (["a/metrics.jsonl", "a/trainer_state.json"], ["metrics", "trainer_state"]),
        (["a/metrics.jsonl", "a/other.csv"], ["a", "other"]),
        (["x/wandb/run-1/files/output.log"], ["run-1"]),
        (["a/log.csv", "b/log.csv"], ["a/log", "b/log"]),
        (["x/run/log.csv", "y/run/log.csv", "y/other.csv", "z/log.csv"], ["x/run/log", "y/run/log", "other", "z/log"]),
        (["y/other.csv", "y/other.csv"], ["other", "other (2)"]),
        (["y/other.csv", "y/other.jsonl"], ["other.csv", "other.jsonl"]),
    ],
)
def test_generic_file_names_give_way_to_the_folder(tmp_path: Path, paths: list[str], names: list[str]) -> None:
    assert file_names([tmp_path / path for path in paths]) == names


def test_long_names_lose_what_they_share() -> None:
    begin, end = "Qwen2.5-0.5B-Instruct-GSM8K-CRPO-sp-p1-b8-gamma2.0-", "-01161659"
    keys = [(("run", f"{begin}{arm}{end}"),) for arm in ("lam0.1", "lam0.5")]
    assert curve_names(keys) == ["lam0.1", "lam0.5"]
    assert curve_names([(("run", "cispo-seed0"),), (("run", "cispo-seed1"),)]) == ["cispo-seed0", "cispo-seed1"]
    bare = [(("run", f"{begin}{number}"),) for number in (7, 8)]
    assert curve_names(bare) == [f"{begin}7", f"{begin}8"]  # a bare number would say nothing
    mixed = [(("run", f"{begin.upper()}a"),), (("run", f"{begin}no-branch"),)]
    assert curve_names(mixed) == ["a", "no-branch"]


def test_labels_name_files_or_curves(tmp_path: Path) -> None:
    paths = [_csv(tmp_path / f"{name}.csv") for name in ("one", "two")]
    assert _names(*paths, labels=("first", "second")) == ["first", "second"]
    path = _csv(tmp_path / "log.csv", "rho,gpu_hours,reward", "0.7,1,0.5\n0.9,1,0.5\n")
    assert _names(path, by=("rho",), labels=("low", "high")) == ["low", "high"]


def test_wrong_number_of_labels_names_the_curves(tmp_path: Path) -> None:
    paths = [_csv(tmp_path / f"{name}.csv") for name in ("one", "two")]
    with pytest.raises(InputError, match="the labels only do not name the curves one, two: give --label once"):
        _names(*paths, labels=("only",))
    with pytest.raises(InputError, match="each another"):
        _names(*paths, labels=("same", "same"))
