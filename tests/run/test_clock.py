import json
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Qwen3Config, Qwen3MoeConfig

from scalerl.models.shape import ModelShape, forward_flops, training_flops, work_flops
from scalerl.run.clock import Clock, Pace, devices_held, larger
from scalerl.types import Work


def llama(**settings):
    sizes: dict[str, Any] = {
        "vocab_size": 11,
        "hidden_size": 8,
        "intermediate_size": 12,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    return LlamaConfig(**(sizes | settings))


def test_the_shape_of_a_tiny_llama_by_hand():
    # A layer: q and o are 8 x 8, k and v 8 x 4 (two of four heads), gate, up and down 8 x 12.
    layer = 2 * 8 * 8 + 2 * 8 * 4 + 3 * 8 * 12
    shape = ModelShape.from_config(llama())
    assert shape == ModelShape(body_params=3 * layer, head_params=8 * 11, layers=3, attention_width=8)
    # Biases are no products; a tied head is multiplied by all the same.
    assert ModelShape.from_config(llama(attention_bias=True, tie_word_embeddings=True)) == shape


def test_a_head_size_of_its_own_counts():
    config = Qwen3Config(
        vocab_size=11,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
    )
    shape = ModelShape.from_config(config)
    assert shape.attention_width == 24
    assert shape.body_params == 2 * 8 * 24 + 2 * 8 * 12 + 3 * 8 * 12


def test_only_the_experts_of_a_token_count():
    sizes: dict[str, Any] = {
        "vocab_size": 11,
        "hidden_size": 8,
        "moe_intermediate_size": 12,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 4,
        "num_experts": 6,
        "num_experts_per_tok": 2,
    }
    config = Qwen3MoeConfig(**sizes)
    assert ModelShape.from_config(config).body_params == 4 * 8 * 8 + 6 * 8 + 2 * 3 * 8 * 12


def test_other_families_need_no_formula_of_their_own():
    config = GPT2Config(vocab_size=11, n_embd=8, n_layer=2, n_head=2, n_positions=32)
    shape = ModelShape.from_config(config)
    # q, k, v and o are 8 x 8, the two matrices of the MLP 8 x 32.
    assert shape == ModelShape(body_params=2 * (4 * 64 + 2 * 256), head_params=88, layers=2, attention_width=8)


def test_flops_by_hand():
    shape = ModelShape(body_params=1000, head_params=50, layers=2, attention_width=8)
    # Three tokens attend to 1 + 2 + 3, two to 1 + 2; four logits.
    expected = 2 * 1000 * 5 + 4 * 2 * 8 * (6 + 3) + 2 * 50 * 4
    assert forward_flops(shape, [3, 2], 4) == expected
    assert training_flops(shape, [3, 2], 4) == 3 * expected
    assert forward_flops(shape, [], 0) == 0
    # Of 30 adapter parameters alone: two products with every frozen matrix, three with theirs, attention as before.
    frozen = 4 * 1000 * 5 + 3 * 4 * 2 * 8 * (6 + 3) + 4 * 50 * 4
    assert training_flops(shape, [3, 2], 4, adapters=30) == frozen + 6 * 30 * 5


def test_parts_of_a_sequence_cost_what_the_whole_costs():
    shape = ModelShape(body_params=1000, head_params=50, layers=2, attention_width=8)
    # Two sequences of 7 and 4 tokens that share their first 3, which are computed once.
    parts = forward_flops(shape, [3], 0) + forward_flops(shape, [4, 1], 4, shared=[3, 3])
    whole = forward_flops(shape, [7, 4], 4) - forward_flops(shape, [3], 0)
    assert parts == whole
    assert training_flops(shape, [4, 1], 4, shared=3) == 3 * forward_flops(shape, [4, 1], 4, shared=3)


def test_engine_and_learner_count_equal_flops():
    shape = ModelShape(body_params=1000, head_params=50, layers=2, attention_width=8)
    # A prompt of 5 tokens and an answer of 3: 7 tokens are computed, the last 3 of them with logits.
    before = Work(prefilled=100, decoded=30, attended=700)
    after = before + Work(prefilled=4, decoded=3, attended=7 * 8 // 2)
    assert work_flops(shape, before, after) == forward_flops(shape, [7], 3)


def test_a_real_model_is_near_six_times_its_parameters_a_token():
    """The rule of thumb, 6 N D, where attention is short and the head is counted."""
    config = llama(hidden_size=128, intermediate_size=352, vocab_size=64, num_hidden_layers=4)
    shape = ModelShape.from_config(config)
    total = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    flops = training_flops(shape, [8] * 100, 800)
    assert flops == pytest.approx(6 * total * 800, rel=0.02)


def test_a_long_sequence_is_not_the_same_as_many_short_ones():
    shape = ModelShape(body_params=1000, head_params=50, layers=2, attention_width=8)
    assert forward_flops(shape, [1000], 0) > 10 * forward_flops(shape, [10] * 100, 0)


def test_devices():
    assert devices_held(["cpu", "cpu"]) == 1
    assert devices_held(["cuda:0", "cuda:0", "cpu"]) == 1
    assert devices_held(["cuda:0", "cuda:1", "cuda:2", "cuda:1"]) == 3


class Time:
    def __init__(self):
        self.seconds = 1000.0

    def __call__(self):
        return self.seconds


def test_only_training_is_on_the_axis():
    now = Time()
    clock = Clock(devices=4, now=now)
    now.seconds += 30  # start-up
    clock.start_training()
    now.seconds += 3600
    with clock.aside("evaluation"):
        now.seconds += 500
        with clock.aside("compilation"):
            now.seconds += 50
        now.seconds += 5
    now.seconds += 1800  # idle or not
    with clock.aside("checkpoint"):
        now.seconds += 7
    clock.add(generator_flops=2e12, learner_flops=6e12, tokens=100)
    clock.add(generator_flops=1e12, tokens=50)
    clock.add(evaluation_flops=4e12)
    assert clock.gpu_hours == 4 * 1.5
    assert clock.row() == {
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


def test_start_up_may_begin_before_the_clock():
    now = Time()
    clock = Clock(now=now, since=now.seconds - 20)
    now.seconds += 3
    clock.start_training()
    assert clock.row()["time/start_up_s"] == 23
    assert clock.gpu_hours == 0


def test_recount_moves_training_seconds_to_another_kind():
    now = Time()
    clock = Clock(devices=2, now=now)
    clock.start_training()
    now.seconds += 3600
    clock.recount("compilation", 900)
    assert clock.gpu_hours == 1.5
    assert clock.row()["time/training_s"] == 2700
    assert clock.row()["time/compilation_s"] == 900
    clock.recount("compilation", 10_000)  # never more than there was
    assert clock.gpu_hours == 0
    with pytest.raises(ValueError, match="'lunch' is not a kind of time"):
        clock.recount("lunch", 1)


def test_the_clock_never_runs_backwards():
    now = Time()
    clock = Clock(now=now)
    clock.start_training()
    now.seconds += 100
    before = clock.row()
    now.seconds -= 50
    assert clock.row() == before
    now.seconds += 10
    assert clock.row()["time/training_s"] == 110


def test_an_aside_that_fails_still_ends():
    now = Time()
    clock = Clock(now=now)
    clock.start_training()

    def fail():
        with clock.aside("evaluation"):
            now.seconds += 5
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    now.seconds += 3600
    assert clock.gpu_hours == 1.0


def test_resume_starts_from_the_largest_amount_spent():
    now = Time()
    clock = Clock(devices=2, now=now)
    clock.start_training()
    now.seconds += 3600
    clock.add(learner_flops=5.0)
    saved = json.loads(json.dumps(clock.row()))
    now.seconds += 1800
    clock.add(learner_flops=2.0, tokens=3)
    last_row = {"step": 12, "attempt": 1, "reward/mean": 0.1} | clock.row()

    # On more devices than before: what was held then stays as it was.
    again = Clock(devices=8, now=now, spent=larger(saved, last_row))
    assert (again.gpu_hours, again.flops) == (3.0, 7.0)
    now.seconds += 60
    assert again.gpu_hours == 3.0
    again.start_training()
    now.seconds += 3600
    assert again.gpu_hours == 11.0
    assert again.row()["time/training_s"] == 5400 + 3600
    assert Clock(now=now, spent=larger(saved, {})).gpu_hours == 2.0
    assert larger()["gpu_hours"] == 0.0


def test_wrong_use_is_refused():
    clock = Clock(now=Time())
    with pytest.raises(ValueError, match="'lunch' is not a kind of time"), clock.aside("lunch"):
        pass
    with pytest.raises(ValueError, match="tokens cannot grow by -1"):
        clock.add(tokens=-1)
    with pytest.raises(ValueError, match="flops cannot grow by nan"):
        clock.add(learner_flops=float("nan"))


def test_a_suspended_step_is_a_stall():
    pace = Pace()
    assert [pace.stalled_s(seconds) for seconds in [0.5] * 8] == [0.0] * 8
    assert pace.stalled_s(69.0) == pytest.approx(68.5)
    assert pace.stalled_s(0.6) == 0
    # Not far beyond the usual: a garbage collection, or a long answer.
    assert pace.stalled_s(4.0) == 0


def test_sampling_for_a_whole_round_is_not_a_stall():
    pace = Pace(round_steps=4)
    rounds = [40.0, 1.0, 1.0, 1.0] * 6
    assert [pace.stalled_s(seconds) for seconds in rounds] == [0.0] * len(rounds)
    assert pace.stalled_s(240.0) == pytest.approx(200.0)
    assert pace.stalled_s(40.0) == pytest.approx(39.0)


def test_a_lasting_change_of_pace_is_not_a_stall():
    pace = Pace()
    stalls = [pace.stalled_s(seconds) for seconds in [1.0] * 20 + [30.0] * 40]
    assert sum(stall > 0 for stall in stalls) <= 11
    assert stalls[-1] == 0


def test_first_steps_have_no_usual_time():
    pace = Pace()
    assert [pace.stalled_s(seconds) for seconds in (60.0, 0.5, 0.5, 50.0)] == [0.0] * 4


def test_stalled_time_is_off_the_compute_axis():
    clock = Clock(devices=2, now=iter([0.0, 0.0, 70.0, 70.0, 70.0]).__next__)
    clock.start_training()
    clock.recount("stalled", 68.0)
    row = clock.row()
    assert (row["time/stalled_s"], row["time/training_s"]) == (68.0, 2.0)
    assert row["gpu_hours"] == pytest.approx(2 * 2.0 / 3600)
