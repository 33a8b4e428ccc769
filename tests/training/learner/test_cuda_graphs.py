"""Passes of few shapes, recorded: on a CPU the same code runs with the work itself in the place of its graphs."""

import itertools

import pytest
import torch
from batches import VERSION, random_batch
from hypothesis import given, settings
from hypothesis import strategies as st
from learners import check_close, gpu_model, gradients_of, make_learner, recipe_of
from torch.utils._python_dispatch import TorchDispatchMode

from scalerl.training.learner.batch import ForwardInputs
from scalerl.training.learner.cuda_graphs import MOST_GRAPHS, PassGraphs, padded, rounded_up, shape_of
from scalerl.training.learner.packed_attention import pack
from scalerl.training.run.learners import build_learner

# Of a CPU without bf16 instructions, where the products are computed the slow way.
pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")


def make_pass(lengths, num_trained=2):
    """The last tokens of each sequence are trained."""
    ends = itertools.accumulate(lengths)
    places = [range(end - min(num_trained, size), end) for size, end in zip(lengths, ends, strict=True)]
    place = torch.tensor([*itertools.chain(*places)])
    return ForwardInputs(
        ids=torch.arange(sum(lengths)) % 17,
        packing=pack(lengths),
        place=place,
        targets=place % 13,
        temperature=0.7,
    )


def the_work_itself(first, second):
    """A recording where there are no graphs; a replay does not care whether gradients are on."""
    first()
    second()
    return torch.enable_grad()(first), second


def with_graphs(learner, *, most_tokens=1000, more_leaves=(), seen=None):
    """Small passes by graphs, as on a GPU."""
    leaves = [*learner.policy.leaves(), *more_leaves]
    graphs = PassGraphs(
        learner.policy.compute,
        leaves,
        most_tokens=most_tokens,
        device=learner.policy.device,
        record=the_work_itself,
        seen=seen,
    )
    learner.policy.graphs, learner.policy.share_from = graphs, most_tokens
    return learner, graphs


class Everything(set):
    """Every shape was met before."""

    def __contains__(self, item):
        return True


@settings(deadline=None)
@given(st.integers(1, 100_000), st.sampled_from([4, 8]))
def test_rounded_sizes_are_few_and_little_larger(number, steps):
    rounded = rounded_up(number, steps=steps)
    assert number <= rounded <= number * (1 + 1 / steps)
    assert rounded_up(rounded, steps=steps) == rounded
    octave = 2 ** (number.bit_length() - 1)
    assert len({rounded_up(size, steps=steps) for size in range(octave, min(2 * octave, octave + 3000))}) <= steps + 1


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 50))
def test_padding_comes_after_the_inputs_and_is_separate(lengths, num_trained):
    inputs = make_pass(lengths, num_trained)
    more = padded(inputs)
    num, num_targets = len(inputs.ids), len(inputs.targets)
    assert more.ids[:num].equal(inputs.ids)
    assert more.place[:num_targets].equal(inputs.place)
    assert more.targets[:num_targets].equal(inputs.targets)
    assert more.packing.positions[:num].equal(inputs.packing.positions)
    assert more.packing.starts[: len(lengths) + 1].equal(inputs.packing.starts)
    # No place twice, no sequence longer than attention is told, no token outside of one.
    assert len(more.place.unique()) == len(more.place) == len(more.targets)
    sizes = more.packing.starts.diff()
    assert sizes.max() <= inputs.packing.width == more.packing.width
    assert sizes.sum() == len(more.ids)
    assert shape_of(padded(more)) == shape_of(more)


def test_large_passes_share_prompts_beside_graphs():
    """Passes above the graphs' limit share prompts; a smaller pass of the same batch then has no graph either."""
    overrides, batch = ("learner.micro_batch_tokens=60",), random_batch(3, num_groups=8)
    exact, row = gradients_of(make_learner(*overrides), batch)
    learner, graphs = with_graphs(make_learner(*overrides), most_tokens=20, seen=Everything())
    gradients, same_row = gradients_of(learner, batch)
    assert same_row["batch/flops"] == row["batch/flops"]
    assert graphs.num_graphs == 0
    for name in exact:
        torch.testing.assert_close(gradients[name], exact[name], rtol=1e-5, atol=1e-6)
    learner, graphs = with_graphs(make_learner(*overrides), most_tokens=60, seen=Everything())
    _, apart = gradients_of(learner, batch)
    assert apart["batch/flops"] > row["batch/flops"]
    assert graphs.num_graphs > 0


@pytest.mark.parametrize(
    ("loss", "dtype", "family"),
    [("cispo", "float32", "smollm"), ("gspo", "float32", "smollm"), ("cispo", "bfloat16", "qwen2")],
)
def test_gradients_and_rows_are_those_of_plain_passes(loss, dtype, family):
    overrides = (f"loss={loss}", f"model.dtype={dtype}", "learner.micro_batch_tokens=60", "learner.share_prompts=false")
    batch = random_batch(3, num_groups=8)
    plain, row = gradients_of(make_learner(*overrides, family=family), batch)
    learner, graphs = with_graphs(make_learner(*overrides, family=family), seen=Everything())
    gradients, same_row = gradients_of(learner, batch)
    assert row["batch/micro_batches"] > 3
    assert graphs.num_graphs > 2
    # In bf16, sums over another number of rows round otherwise.
    digits = 1e-5 if dtype == "float32" else 0.02
    check_close(gradients, plain, digits, rtol=digits)
    assert same_row == pytest.approx(row, rel=digits, abs=digits)


def test_recurring_shape_is_recorded_and_sums_restart():
    learner, graphs = with_graphs(make_learner("optimizer.lr=1e-12"))
    rows, num_graphs = [], []
    for _ in range(4):
        rows.append(gradients_of(learner, random_batch(4, num_groups=6, version=learner.version))[0])
        num_graphs.append(graphs.num_graphs)
    assert num_graphs == [0, 1, 1, 1]
    for gradients in rows[1:]:
        for name in gradients:
            torch.testing.assert_close(gradients[name], rows[0][name], rtol=1e-5, atol=1e-7)


def test_excess_shapes_are_not_recorded(monkeypatch):
    _, graphs = with_graphs(make_learner(), seen=Everything())
    monkeypatch.setattr("scalerl.training.learner.cuda_graphs.MOST_GRAPHS", 3)
    for length in range(1, 9):
        graphs(make_pass([length]))
    assert graphs.num_graphs == 3 < MOST_GRAPHS


def test_a_weight_that_no_pass_uses_gets_no_gradient():
    """Else its weight decay would begin with the first graph."""
    unused = torch.nn.Parameter(torch.ones(2))
    learner, graphs = with_graphs(
        make_learner("model.dtype=bfloat16"), more_leaves=[(unused, unused)], seen=Everything()
    )
    learner.step(random_batch(4, num_groups=6))
    assert graphs.num_graphs > 0
    assert unused.grad is None


class Questions(TorchDispatchMode):
    """What the host asks for: values, and shapes that depend on values."""

    def __init__(self):
        super().__init__()
        self.inputs = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "local_scalar" in str(func) or "nonzero" in str(func):
            self.inputs.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("family", ["smollm", "qwen2"])
def test_a_pass_asks_the_device_nothing(family):
    learner = make_learner("model.dtype=bfloat16", family=family)
    inputs = padded(make_pass([5, 9, 3]))
    with Questions() as questions:
        log_probs, _ = learner.policy.compute(inputs)
        log_probs.sum().backward()
        assert questions.inputs == []
        log_probs.sum().item()
        assert questions.inputs != []


@pytest.mark.gpu
@pytest.mark.parametrize("tied", [True, False])
def test_on_a_gpu_graphs_give_the_gradients_of_plain_passes(tied):
    """Micro-batches of several shapes, each met before."""
    recipe = recipe_of("model.dtype=bfloat16", "learner.micro_batch_tokens=60", "optimizer.lr=1e-12")
    plain, recorded = (build_learner(gpu_model(tie_word_embeddings=tied), recipe, version=VERSION) for _ in range(2))
    plain.policy.graphs = None
    for seed in range(4):
        for _ in range(3):
            batch = random_batch(seed, num_groups=8, version=plain.version)
            (exact, row), (gradients, same_row) = (gradients_of(learner, batch) for learner in (plain, recorded))
            assert row["batch/micro_batches"] > 1
            for key in row.keys() - {"time/step_s"}:
                assert same_row[key] == pytest.approx(row[key], rel=0.02, abs=0.02), key
            check_close(gradients, exact, 0.02, rtol=0.05)
    assert recorded.policy.graphs.num_graphs > 3


@pytest.mark.gpu
def test_on_a_gpu_graphs_follow_the_weights():
    """A graph holds where weights lie, not what they are: after steps and after loading, the loss is the plain one."""
    learner = build_learner(gpu_model(), recipe_of("model.dtype=bfloat16", "optimizer.lr=1e-3"), version=VERSION)
    # The tensors of a state are the learner's own.
    before = {
        part: {name: tensor.clone() for name, tensor in tensors.items()}
        for part, tensors in learner.state_dict().items()
    }

    def losses():
        return [learner.step(random_batch(5, num_groups=8, version=learner.version))["loss/value"] for _ in range(6)]

    first = losses()
    assert learner.policy.graphs.num_graphs > 0
    assert len(set(first)) > 4
    learner.load_state_dict(before)
    assert losses() == pytest.approx(first, rel=0.05, abs=0.02)
