"""What verl's own logger writes is read as it is. `make test-slow` installs verl without what it needs to train."""

import contextlib
import io
from pathlib import Path

import pytest

import scalerl

tracking = pytest.importorskip("verl.utils.tracking", reason="verl is not installed", exc_type=ImportError)
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # other people's


def test_console_and_file_of_verl_are_the_same_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("VERL_FILE_LOGGER_ROOT", str(tmp_path))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        log = tracking.Tracking("project", "run", default_backend=["console", "file"], config={})
        for step in range(0, 201, 10):
            reward = 0.2 + 0.4 / (1 + (60 / step) ** 1.5) if step else 0.2
            trained = {"critic/rewards/mean": reward + 0.01, "timing_s/step": 30.0} if step else {}
            log.log({"val-core/gsm8k/reward/mean@1": reward, **trained}, step=step)
    (tmp_path / "verl.log").write_text(printed.getvalue())
    for path in (tmp_path / "verl.log", tmp_path / "project" / "run.jsonl"):
        (curve,) = scalerl.read(path, x="step").fit().curves
        assert curve.verdict == "known", path
        assert curve.start.value == pytest.approx(0.2, abs=0.01), path
        assert 0.58 < curve.ceiling.value < 0.62, path
