"""ForecastCallback in a real TRL GRPOTrainer on a CPU. `make test-slow` installs TRL (the extra "trainers")."""

import time
from pathlib import Path
from typing import Any

import pytest

trl = pytest.importorskip("trl", reason="TRL is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # other people's
]

from datasets import Dataset  # noqa: E402
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, set_seed  # noqa: E402

from scalerl.callbacks import ForecastCallback  # noqa: E402

TOKENIZER = Path(__file__).parents[2] / "src" / "scalerl" / "assets" / "tiny-base"


def share_of_fives(completions: list[str], **_: Any) -> list[float]:
    return [text.count("5") / max(len(text), 1) for text in completions]


def make_trainer(folder: Path, callbacks: list[Any], *, max_steps: int, eval_every: int = 10, **more: Any) -> Any:
    set_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=128, pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id, bos_token_id=tokenizer.bos_token_id,
    )  # fmt: skip
    rows = Dataset.from_list([{"prompt": f"{a}+{b}="} for a in range(8) for b in range(8)])
    args = trl.GRPOConfig(
        output_dir=str(folder), max_steps=max_steps, per_device_train_batch_size=16, num_generations=8,
        max_completion_length=12, learning_rate=3e-3, logging_steps=1, eval_strategy="steps", eval_steps=eval_every,
        per_device_eval_batch_size=16, num_generations_eval=8, save_strategy="no", use_cpu=True, seed=0, beta=0.0,
        disable_tqdm=True, **{"report_to": "none", **more},
    )  # fmt: skip
    return trl.GRPOTrainer(
        model=LlamaForCausalLM(config), reward_funcs=share_of_fives, args=args, train_dataset=rows,
        eval_dataset=rows.select(range(16)), processing_class=tokenizer, callbacks=callbacks,
    )  # fmt: skip


def rewards_of(trainer: Any) -> list[tuple[int, float]]:
    return [(row["step"], row["reward"]) for row in trainer.state.log_history if "reward" in row]


def test_rewards_are_the_same_and_the_overhead_is_small(tmp_path: Path):
    plain = make_trainer(tmp_path / "plain", [], max_steps=60)
    plain.train()
    spent: list[float] = []

    class Timed(ForecastCallback):
        """Adds up the time that each event of the callback takes in the trainer's process."""

    for name in ("on_train_begin", "on_log", "on_step_end", "on_train_end"):

        def timed(self: Any, *args: Any, name: str = name, **kwargs: Any) -> None:
            began = time.perf_counter()
            getattr(ForecastCallback, name)(self, *args, **kwargs)
            spent.append(time.perf_counter() - began)

        setattr(Timed, name, timed)
    forecast = Timed()
    trainer = make_trainer(tmp_path / "with", [forecast], max_steps=60)
    forecast.bind(trainer)
    began = time.perf_counter()
    trainer.train()
    wall = time.perf_counter() - began
    assert rewards_of(trainer) == rewards_of(plain)
    assert len(rewards_of(trainer)) == 60
    assert forecast.forecast is not None
    assert forecast.forecast.num_points >= 4
    logged = [row for row in trainer.state.log_history if "forecast/state" in row]
    assert logged
    assert {"forecast/ceiling", "forecast/ceiling_low", "forecast/state"} <= logged[-1].keys()
    print(f"\ncallback {sum(spent):.3f} s of {wall:.1f} s: {sum(spent) / wall:.2%}")
    assert sum(spent) < 0.01 * wall


def test_forecasts_reach_the_trackers_of_a_bound_trainer(tmp_path: Path):
    pytest.importorskip("tensorboardX")
    from scalerl.forecast.logs import read_log

    forecast = ForecastCallback(quiet=True)
    trainer = make_trainer(tmp_path, [forecast], max_steps=40, eval_every=5, report_to="tensorboard")
    forecast.bind(trainer)
    trainer.train()
    events = sorted(tmp_path.rglob("*tfevents*"))
    assert events
    assert "train/forecast/ceiling" in read_log(events[0].parent).frame
