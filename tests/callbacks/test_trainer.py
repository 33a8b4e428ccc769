"""ForecastCallback in a real transformers Trainer, on a model of one number."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from scalerl import callbacks as live
from scalerl.callbacks.forecast import FEWEST_REWARDS
from scalerl.errors import UsageError
from scalerl.forecast.report.words import text

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own


class One(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": ((self.weight * x - labels) ** 2).mean(), "logits": self.weight * x}


ROWS: Any = [{"x": torch.ones(1), "labels": torch.ones(1)} for _ in range(8)]


def make_trainer(folder: Path, callbacks: list[Any], *, max_steps: int = 40, **more: Any) -> Any:
    # Here, and the callback by its module: every process of the tests would import it for seconds.
    from transformers import Trainer, TrainingArguments

    args = TrainingArguments(
        output_dir=str(folder), max_steps=max_steps, per_device_train_batch_size=4, learning_rate=0.05, use_cpu=True,
        logging_steps=1, report_to="none", disable_tqdm=True,
        **{"save_strategy": "no", "eval_strategy": "steps", "eval_steps": 4, **more},
    )  # fmt: skip
    # The weight rises to 1: a reward with a ceiling.
    measure = lambda prediction: {"reward": float(min(max(prediction.predictions.mean(), 0.0), 1.0))}  # noqa: E731
    return Trainer(
        model=One(), args=args, train_dataset=ROWS, eval_dataset=ROWS, compute_metrics=measure, callbacks=callbacks
    )


def logged(trainer: Any, key: str) -> list[Any]:
    return [row[key] for row in trainer.state.log_history if key in row]


def test_forecasts_are_logged_and_nothing_else_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    plain = make_trainer(tmp_path / "plain", [])
    plain.train()
    callback = live.ForecastCallback(final_wait_s=60)
    trainer = make_trainer(tmp_path / "with", [callback])
    callback.bind(trainer)
    trainer.train()
    for key in ("loss", "eval_reward", "eval_loss"):
        assert logged(trainer, key) == logged(plain, key)
    assert logged(trainer, "forecast/state")
    assert callback.forecast is not None
    assert callback.forecast.num_points == 10
    assert "forecast at step 40" in capsys.readouterr().out
    assert callback._workers is None


def test_training_ends_by_rule_with_its_reason_saved(tmp_path: Path):
    def is_long(forecast: live.Forecast) -> bool:
        return forecast.num_points >= 12

    callback = live.ForecastCallback(stop=is_long, patience=1, give_up_after=12, quiet=True, final_wait_s=60)
    trainer = make_trainer(tmp_path, [callback], max_steps=4000)
    callback.bind(trainer)
    trainer.train()
    assert trainer.state.global_step < 4000
    trainer.state.save_to_json(str(tmp_path / "state.json"))
    saved = json.loads((tmp_path / "state.json").read_text())
    reason = saved["stateful_callbacks"]["ForecastCallback"]["attributes"]["stop_reason"]
    assert reason == callback.stop_reason
    assert "is_long" in reason
    assert logged(trainer, "forecast/stop_reason") == [reason]


def test_resumed_trainer_keeps_its_rewards(tmp_path: Path):
    """Their callbacks are not bound, and write into the state."""
    first = make_trainer(
        tmp_path, [live.ForecastCallback(quiet=True)], max_steps=20, save_strategy="steps", save_steps=20
    )
    first.train()
    callback = live.ForecastCallback(quiet=True, final_wait_s=60)
    second = make_trainer(tmp_path, [callback], max_steps=24, save_strategy="steps", save_steps=20)
    second.train(resume_from_checkpoint=True)
    assert callback.forecast is not None
    assert callback.forecast.num_points == 6
    assert logged(second, "forecast/state")


def test_announcement_mentions_training_rewards_only_if_they_are_used(capsys: pytest.CaptureFixture[str]):
    state = SimpleNamespace(log_history=[], is_world_process_zero=True)
    for metric in (None, "eval_reward"):
        live.ForecastCallback(metric=metric).on_train_begin(None, state, None)
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(second)
    assert str(FEWEST_REWARDS) in first.removeprefix(second)


def test_first_evaluation_after_training_rewards_is_announced(capsys: pytest.CaptureFixture[str]):
    callback = live.ForecastCallback()
    state = SimpleNamespace(log_history=[], is_world_process_zero=True, global_step=3, max_steps=9)
    args = SimpleNamespace(world_size=1)
    control = SimpleNamespace(should_training_stop=False)
    for step, logs in enumerate([{"reward": 0.1}, {"reward": 0.2}, {"eval_reward": 0.2}, {"eval_reward": 0.3}]):
        state.global_step = step
        callback.on_log(args, state, control, logs)
    assert capsys.readouterr().out.strip() == text("switched", {"step": 2})


def test_settings_that_cannot_be_used():
    with pytest.raises(UsageError, match="compute is 'days'"):
        live.ForecastCallback(compute="days")
    with pytest.raises(UsageError, match="patience"):
        live.ForecastCallback(patience=0)


def test_import_without_transformers_says_what_to_install():
    code = (
        "import sys, scalerl.callbacks; print(sorted({'torch', 'transformers'} & set(sys.modules)))\n"
        "sys.modules['transformers'] = None\nfrom scalerl.callbacks import LiveForecast, ForecastCallback"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install transformers" in result.stderr.splitlines()[-1]
    assert result.stdout.strip() == "[]"
