import json
import math
from contextlib import suppress
from typing import Any

import pytest
from transformers import GPT2Config, LlamaConfig, Qwen3Config, Qwen3MoeConfig

from scalerl.training.models.shape import ModelShape, forward_flops, training_flops, work_flops
from scalerl.training.run.clock import Clock, StallDetector, larger
from scalerl.training.types import Work

SIZES: dict[str, Any] = {
    "vocab_size": 11,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
EXPERTS: dict[str, Any] = {"moe_intermediate_size": 12, "num_attention_heads": 2, "head_dim": 4, "num_experts": 6}


@pytest.mark.parametrize(
    "config, body, layers, width",
    [
        # A layer: q and o are 8 x 8, k and v 8 x 4 (two of four heads), gate, up and down 8 x 12.
        (LlamaConfig(**{**SIZES, "num_hidden_layers": 3}), 3 * (2 * 8 * 8 + 2 * 8 * 4 + 3 * 8 * 12), 3, 8),
        # Biases are no products; a tied head is multiplied by all the same.
        (
            LlamaConfig(**SIZES, attention_bias=True, tie_word_embeddings=True),
            2 * 8 * 8 + 2 * 8 * 4 + 3 * 8 * 12,
            1,
            8,
        ),
        (Qwen3Config(**SIZES, head_dim=6), 2 * 8 * 24 + 2 * 8 * 12 + 3 * 8 * 12, 1, 24),
        # Only the experts of a token count.
        (Qwen3MoeConfig(**SIZES | EXPERTS, num_experts_per_tok=2), 4 * 8 * 8 + 6 * 8 + 2 * 3 * 8 * 12, 1, 8),
        # Other families need no formula of their own: q, k, v and o are 8 x 8, the two matrices of the MLP 8 x 32.
        (GPT2Config(vocab_size=11, n_embd=8, n_layer=2, n_head=2, n_positions=32), 2 * (4 * 64 + 2 * 256), 2, 8),
    ],
)
def test_the_shape_of_a_model_by_hand(config, body, layers, width):
    expected = ModelShape(body_params=body, head_params=8 * 11, layers=layers, attention_width=width)
    assert ModelShape.from_config(config) == expected


SHAPE = ModelShape(body_params=1000, head_params=50, layers=2, attention_width=8)


def test_flops_by_hand():
    # Three tokens attend to 1 + 2 + 3, two to 1 + 2; four logits.
    expected = 2 * 1000 * 5 + 4 * 2 * 8 * (6 + 3) + 2 * 50 * 4
    assert forward_flops(SHAPE, [3, 2], 4) == expected
    assert training_flops(SHAPE, [3, 2], 4) == 3 * expected
    assert forward_flops(SHAPE, [], 0) == 0
    # Of 30 adapter parameters alone: two products with every frozen matrix, three with theirs, attention as before.
    frozen = 4 * 1000 * 5 + 3 * 4 * 2 * 8 * (6 + 3) + 4 * 50 * 4
    assert training_flops(SHAPE, [3, 2], 4, adapters=30) == frozen + 6 * 30 * 5


def test_parts_of_a_sequence_cost_what_the_whole_costs():
    # Two sequences of 7 and 4 tokens that share their first 3, which are computed once.
    parts = forward_flops(SHAPE, [3], 0) + forward_flops(SHAPE, [4, 1], 4, shared=[3, 3])
    whole = forward_flops(SHAPE, [7, 4], 4) - forward_flops(SHAPE, [3], 0)
    assert parts == whole
    assert training_flops(SHAPE, [4, 1], 4, shared=3) == 3 * forward_flops(SHAPE, [4, 1], 4, shared=3)


def test_engine_and_learner_count_equal_flops():
    # A prompt of 5 tokens and an answer of 3: 7 tokens are computed, the last 3 of them with logits.
    before = Work(prefilled=100, decoded=30, attended=700)
    after = before + Work(prefilled=4, decoded=3, attended=7 * 8 // 2)
    assert work_flops(SHAPE, before, after) == forward_flops(SHAPE, [7], 3)


class Time:
    seconds = 1000.0

    def __call__(self):
        return self.seconds


def started(devices: int = 1, **more: Any) -> tuple[Clock, Time]:
    now = Time()
    clock = Clock(num_devices=devices, now=now, **more)
    clock.start_training()
    return clock, now


def hours(clock: Clock) -> float:
    return clock.row()["gpu_hours"]


def test_only_training_is_on_the_axis():
    now = Time()
    clock = Clock(num_devices=4, now=now, since=now.seconds - 20)  # start-up began before the clock
    now.seconds += 10
    clock.start_training()
    now.seconds += 3600
    with suppress(RuntimeError), clock.aside("evaluation"):
        now.seconds += 500
        with clock.aside("compilation"):
            now.seconds += 50
        now.seconds += 5
        raise RuntimeError
    now.seconds += 1800  # idle or not
    with clock.aside("checkpoint"):
        now.seconds += 7
    clock.add({"flops/generator": 2e12, "flops/learner": 6e12, "tokens": 100})
    clock.add({"flops/generator": 1e12, "tokens": 50})
    clock.add({"flops/evaluation": 4e12})
    spent = {
        "gpu_hours": 6.0,
        "flops": 9e12,
        "flops/generator": 3e12,
        "flops/learner": 6e12,
        "flops/evaluation": 4e12,
        "tokens": 150.0,
        "time/training_s": 5400.0,
        "time/evaluation_s": 505.0,
        "time/compilation_s": 50.0,
        "time/checkpoint_s": 7.0,
        "time/stalled_s": 0.0,
        "time/tools_s": 0.0,
        "time/start_up_s": 30.0,
    }
    assert clock.row() == spent
    now.seconds -= 50  # a suspended machine
    assert clock.row() == spent
    now.seconds += 10
    assert clock.row()["time/training_s"] == 5410


def test_counters_move_training_seconds_to_another_kind():
    compiled = [50.0]
    clock, now = started(devices=2, within={"compilation": lambda: compiled[0]})
    now.seconds += 3600
    compiled[0] += 900
    assert (hours(clock), clock.row()["time/training_s"], clock.row()["time/compilation_s"]) == (1.5, 2700, 900)
    with clock.aside("evaluation"):
        now.seconds += 100
        compiled[0] += 100  # part of the evaluation
    assert (hours(clock), clock.row()["time/compilation_s"]) == (1.5, 900)
    now.seconds += 10
    compiled[0] += 10_000  # never more than has passed
    assert (hours(clock), clock.row()["time/compilation_s"]) == (1.5, 910)


def test_without_gpus_hours_are_cpu_time():
    used, waited = [40.0], [0.0]
    clock, now = started(devices=8, cpu_s=lambda: used[0], within={"tools": lambda: waited[0]})
    for seconds in (7200.0, 0.0):
        used[0] += 1800
        waited[0] += seconds
        now.seconds += seconds
        clock.row()
    with clock.aside("evaluation"):
        used[0] += 900
    # Time in which nothing was computed was no CPU time.
    assert (hours(clock), clock.row()["time/training_s"], clock.row()["time/tools_s"]) == (1.0, 0.0, 7200.0)


def test_steps_add_their_work_and_their_stalls():
    clock, now = started(devices=2, stalls=StallDetector(), work=lambda done: {"flops/learner": done, "tokens": 1})
    clock.after_step(None, None)
    assert clock.at_step == dict.fromkeys(clock.at_step, 0.0)
    for _ in range(6):
        now.seconds += 2
        clock.after_step(5.0, None)
    now.seconds += 3602
    clock.after_step(5.0, None)
    kept = {key: clock.at_step[key] for key in ("flops", "tokens", "time/training_s", "time/stalled_s", "gpu_hours")}
    expected = {"flops": 35, "tokens": 7, "time/training_s": 14, "time/stalled_s": 3600, "gpu_hours": 28 / 3600}
    assert kept == pytest.approx(expected)
    now.seconds += 50
    assert clock.at_step["time/training_s"] == 14  # until the next step
    assert clock.state() == {"clock": clock.row()}


def test_resume_starts_from_the_largest_amount_spent():
    clock, now = started(devices=2)
    now.seconds += 3600
    clock.add({"flops/learner": 5.0})
    saved = json.loads(json.dumps(clock.row()))
    now.seconds += 1800
    clock.add({"flops/learner": 2.0, "tokens": 3})
    last_row = {"step": 12, "attempt": 1, "reward/mean": 0.1} | clock.row()

    # On more devices than before: what was held then stays as it was.
    again = Clock(num_devices=8, now=now, spent=larger(saved, last_row))
    now.seconds += 60
    assert (hours(again), again.row()["flops"]) == (3.0, 7.0)
    again.start_training()
    now.seconds += 3600
    assert (hours(again), again.row()["time/training_s"]) == (11.0, 5400 + 3600)
    assert hours(Clock(now=now, spent=larger(saved, {}))) == 2.0
    assert larger()["gpu_hours"] == 0.0


@pytest.mark.parametrize("key, value", [("tokens", -1), ("flops/learner", math.nan)])
def test_wrong_use_is_refused(key, value):
    with pytest.raises(ValueError, match=f"{key} cannot grow by {value}"):
        Clock(now=Time()).add({key: value})


@pytest.mark.parametrize(
    "round_steps, usual, more",
    [
        # Not far beyond the usual is a garbage collection, or a long answer.
        (1, [0.5] * 8, [(69.0, 68.5), (0.6, 0.0), (4.0, 0.0)]),
        # Sampling for a whole round is not a stall.
        (4, [40.0, 1.0, 1.0, 1.0] * 6, [(240.0, 200.0), (40.0, 39.0)]),
        # The first steps have no usual time.
        (1, [60.0, 0.5, 0.5, 50.0], []),
    ],
)
def test_a_suspended_step_is_a_stall(round_steps, usual, more):
    stalls = StallDetector(round_steps=round_steps)
    assert [stalls.stalled_s(seconds) for seconds in usual] == [0.0] * len(usual)
    assert [stalls.stalled_s(seconds) for seconds, _ in more] == pytest.approx([stall for _, stall in more])


def test_a_lasting_change_of_pace_is_not_a_stall():
    stalls = StallDetector()
    stalled = [stalls.stalled_s(seconds) for seconds in [1.0] * 20 + [30.0] * 40]
    assert sum(stall > 0 for stall in stalled) <= 11
    assert stalled[-1] == 0
