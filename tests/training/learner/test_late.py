"""Metrics that are read after the step: equal to those read at once, in any order, once."""

import math
from dataclasses import replace

import pytest
import torch
from batches import VERSION, make_completion, make_group, random_batch
from learners import make_learner

from scalerl.training.learner.late import HostCopy, LateMetrics, StepTimer, sent
from scalerl.training.learner.packed_attention import pack, packed_attention
from scalerl.training.learner.step import TorchLearner
from scalerl.training.types import Batch

SETTINGS = ("optimizer.warmup_steps=5",)
BAD_STEP = 2


def unusable_batch(version: int) -> Batch:
    same = [make_completion("0/b", i, [3], [2, 1]) for i in range(2)]
    return Batch(version=version, groups=[make_group(same, [True, True])])


def take_steps(learner, num=6):
    """Return the metrics of steps of which one is skipped, as its loss is not finite, and one has nothing to train."""
    rows, good = [], learner.objective
    bad = replace(good, loss=lambda inputs: _scaled(good.loss(inputs), math.nan))
    for number in range(num):
        version = VERSION + number
        learner.objective = bad if number == BAD_STEP else good
        rows.append(learner.step(unusable_batch(version) if number == 4 else random_batch(number, version=version)))
    return rows


def _scaled(loss, factor):
    return type(loss)(loss=loss.loss * factor, ratio=loss.ratio, clipped=loss.clipped)


@pytest.fixture
def late(monkeypatch):
    """Make learners read late on a CPU too."""
    monkeypatch.setattr(TorchLearner, "reads_late", True)


def test_known_metrics_do_not_wait_and_others_are_read_once():
    reads = []

    def read():
        reads.append(1)
        return {"a": 1.0, "b": 2.0}

    metrics = LateMetrics({"a": 1.0}, read)
    assert metrics["a"] == metrics.get("a", 0.0) == 1.0
    assert not reads
    assert metrics["b"] == 2.0
    assert dict(metrics) == {"a": 1.0, "b": 2.0}
    assert len(metrics) == 2
    assert metrics.get("c", 3.0) == 3.0
    assert len(reads) == 1


@pytest.mark.parametrize("order", ["never", "backwards"])
def test_late_metrics_equal_those_read_at_once(monkeypatch, order):
    at_once = make_learner(*SETTINGS)
    expected = take_steps(at_once)
    monkeypatch.setattr(TorchLearner, "reads_late", True)
    learner = make_learner(*SETTINGS)
    rows = take_steps(learner)
    assert all(isinstance(row, LateMetrics) for row in rows)
    for row in reversed(rows) if order == "backwards" else ():
        row.read()
    # A skipped update does not move the schedule, although nobody had looked when the next step began.
    assert learner.lr == at_once.lr
    assert [row["optim/lr"] for row in rows] == [row["optim/lr"] for row in expected]
    assert [dict(row) for row in rows] == expected
    assert [row["optim/skipped"] for row in rows] == [0, 0, 1, 0, 0, 0]
    for name, weight in learner.weights().items():
        assert torch.equal(weight, at_once.weights()[name])


def test_a_checkpoint_counts_the_last_update(late):
    learner = make_learner(*SETTINGS)
    rows = take_steps(learner, 3)
    state = learner.state_dict()
    assert int(state["counters"]["updates"]) == 2
    restored = make_learner(*SETTINGS)
    restored.load_state_dict(state)
    assert restored.lr == learner.lr
    assert rows[-1]["optim/skipped"] == 1.0


def test_unread_metrics_do_not_count_for_a_restored_state(late):
    learner = make_learner(*SETTINGS)
    state = {name: {key: value.clone() for key, value in part.items()} for name, part in learner.state_dict().items()}
    row = learner.step(random_batch(0))
    learner.load_state_dict(state)
    assert row["optim/skipped"] == 0.0
    assert int(learner.state_dict()["counters"]["updates"]) == 0


def test_on_a_cpu_nothing_is_copied_or_read_late():
    row = make_learner().step(random_batch(0))
    assert type(row) is dict
    assert "time/step_s" not in row
    device, values = torch.device("cpu"), torch.arange(3.0)
    assert HostCopy(values).wait() is values
    assert sent(values, device) is values
    timer = StepTimer(device)
    timer.stop()
    assert timer.metrics() == {}


def test_shared_prompts_compile_with_warnings_as_errors():
    """torch.compile makes a torch.autograd.Function of its own to trace ours, and warns of it."""
    packing = pack([4, 3, 2], [0, 1, 0], [0, 0, 2])
    assert packing.keys is not None

    def attend(query, key, value):
        module = torch.nn.Module()
        return packed_attention(module, query, key, value, None, **packing.for_attention)[0]

    torch.manual_seed(0)
    inputs = [torch.randn(1, 2, 9, 8, requires_grad=True) for _ in range(3)]
    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
    results = [function(*inputs) for function in (compiled, attend)]
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*[torch.autograd.grad(result.square().sum(), inputs) for result in results])
