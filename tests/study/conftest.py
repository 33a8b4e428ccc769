"""A study that has ended, made once."""

import shutil
from pathlib import Path

import pytest
from small_study import run


@pytest.fixture(scope="session")
def ended_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ended")
    run(folder, {"dapo-seed1": "fail"})
    return folder / "out"


@pytest.fixture
def ended(ended_study: Path, tmp_path: Path) -> Path:
    """A folder with a study in `out`: its last run has failed, the others are done."""
    shutil.copytree(ended_study, tmp_path / "out")
    return tmp_path
