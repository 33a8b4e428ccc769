"""A plain loop that forecasts and logs to a real wandb, offline. `make test-slow` installs wandb (extra "trainers")."""

from pathlib import Path

import pytest

import scalerl
from scalerl.callbacks import LiveForecast, follow
from scalerl.callbacks.forecast import describe

wandb = pytest.importorskip("wandb", reason="wandb is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # other people's


def test_plain_loop_with_wandb_is_read_back(tmp_path: Path):
    run = wandb.init(project="loop", dir=str(tmp_path), mode="offline", settings=wandb.Settings(silent=True))
    live, verdicts = LiveForecast(end_compute=800), []
    for step in range(0, 401, 20):
        reward = 0.2 + 0.4 / (1 + (100 / step) ** 1.5) if step else 0.2
        live.add(step, reward, num_samples=512)
        outlook = live.outlook()
        forecast = {} if outlook is None else describe(outlook).metrics()
        verdicts += [forecast["forecast/state"]] if forecast else []
        run.log({"train/step": step, "eval/reward": reward, **forecast}, step=step)
    run.finish()
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    assert len(verdicts) == 16  # from the sixth evaluation on
    (curve,) = scalerl.read(folder, y="eval/reward").fit().curves
    assert 0.5 < curve.ceiling.low < 0.6 < curve.ceiling.high
    last = list(follow(folder, end_compute=800, x="_step", y="eval/reward", every_s=0.1, until_quiet_s=0.5))[-1]
    assert (last.num_points, last.compute) == (20, 400)  # step 0 is the start
    assert last.end is not None
    assert 0.52 < last.end.value < 0.6  # the curve is at 0.583 there
