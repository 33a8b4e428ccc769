"""Run small passes as CUDA graphs: a pass has hundreds of kernels, and for a small model launching them dominates.

    inputs -> padded to one of few shapes -> forward graph -> log-probs -> loss, as usual -> backward graph -> sums

A graph works for one shape, so sizes are rounded up to make shapes recur. The padding is a separate sequence to which
no trained token attends; its gradient is zero, so it adds nothing. The loss stays outside the graphs, because it may
read values from the device. The first pass of a shape runs without a graph, because recording takes as long as several
passes.
"""

import warnings
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from scalerl.training.learner.batch import ForwardInputs, Scored
from scalerl.training.learner.body import add_gradient
from scalerl.training.learner.packed_attention import pack

Leaves = Sequence[tuple[Tensor, Tensor]]
"""Leaves of the autograd graph of a pass, each with the tensor whose gradient its gradient is added to."""
Compute = Callable[[ForwardInputs], Scored]
"""Computes a pass."""
MOST_WORK = 2**39
"""Largest tokens x parameters of a recorded pass. Above this, kernels take longer than their launches, and graphs
reserve much memory."""
LEAST_TOKENS = 1024
"""If even a pass of this many tokens exceeds MOST_WORK, no graphs are recorded."""
MOST_GRAPHS = 64


def padded(inputs: ForwardInputs) -> ForwardInputs:
    """Pad the inputs to a rounded shape; the first results belong to the original inputs."""
    lengths = inputs.packing.starts.diff().tolist()
    tokens = rounded_up(len(inputs.ids), steps=8)
    # Padding sequences are at most as long as the longest: attention leaves the rest undefined, and 0 x NaN is NaN.
    full, rest = divmod(tokens - len(inputs.ids), inputs.packing.width)
    lengths += [inputs.packing.width] * full + [rest] * (rest > 0)
    lengths += [0] * (rounded_up(len(lengths), steps=4) - len(lengths))
    unused = np.ones(tokens, dtype=np.bool_)
    unused[inputs.place.numpy()] = False
    num_targets = min(rounded_up(len(inputs.targets), steps=8), tokens)
    more = np.flatnonzero(unused)[: num_targets - len(inputs.targets)]
    return ForwardInputs(
        ids=_longer(inputs.ids, tokens),
        packing=pack(lengths),
        place=torch.cat([inputs.place, torch.from_numpy(more)]),
        targets=_longer(inputs.targets, num_targets),
        temperature=inputs.temperature,
    )


def shape_of(inputs: ForwardInputs) -> tuple[int, int, int, int, float]:
    """Return everything that a graph depends on except the values of its tensors."""
    longest = inputs.packing.for_attention["longest"]
    return len(inputs.ids), len(inputs.packing.starts), len(inputs.targets), longest, inputs.temperature


def rounded_up(number: int, *, steps: int) -> int:
    """Round up to one of `steps` values per power of two; the result is at most 1 / steps larger."""
    step = max(1 << (number.bit_length() - 1), steps) // steps
    return -(-number // step) * step


def _longer(values: Tensor, length: int) -> Tensor:
    return torch.cat([values, values.new_zeros(length - len(values))])


def reads_device(
    compute: Compute,
    leaves: Leaves,
    device: torch.device,
) -> bool:
    """Return whether a pass reads values from the device, as routed experts do; it can then not be recorded."""
    inputs = ForwardInputs.blank(pack([3, 2])).to(device)
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
    try:
        log_probs, _ = compute(inputs)
        torch.autograd.grad(log_probs.sum(), [leaf for leaf, _ in leaves], allow_unused=True)
    except RuntimeError:
        return True
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return False


class PassGraphs:
    """Runs passes, with CUDA graphs where they exist, and sums the gradients that the graphs compute."""

    def __init__(
        self,
        compute: Compute,
        leaves: Leaves,
        *,
        most_tokens: int,
        device: torch.device,
        record: "Record",
        seen: set[tuple] | None = None,
    ) -> None:
        """`compute` returns log-probs and entropies. `leaves` are pairs of a leaf of its autograd graph and the master
        weight to which the leaf's gradient belongs. `seen` are shapes that had a pass before and are now recorded."""
        self._compute, self._device, self.most_tokens = compute, device, most_tokens
        self._leaves = [leaf for leaf, _ in leaves]
        self._masters = [master for _, master in leaves]
        self._sums = {id(master): torch.zeros_like(master, dtype=torch.float32) for master in self._masters}
        self._used: dict[int, Tensor] = {}
        """Master weights for which some graph has a gradient."""
        self._summed = False
        self._seen = set[tuple]() if seen is None else seen
        self._graphs: dict[tuple, _Graphs] = {}
        self._record = record
        # This leaf requires a gradient, so that autograd runs the backward graph.
        self._anchor = torch.zeros((), device=device, requires_grad=True)

    @property
    def num_graphs(self) -> int:
        return len(self._graphs)

    def __call__(self, inputs: ForwardInputs) -> Scored:
        """Return log-probs, with gradient, and entropies, without gradient; `inputs` is on the host."""
        num = len(inputs.targets)
        if len(inputs.ids) > self.most_tokens or inputs.packing.keys is not None:
            return self._compute(inputs)
        inputs = padded(inputs)
        graphs = self._graphs_for(inputs)
        if graphs is None:
            log_probs, entropy = self._compute(inputs)
            return log_probs[:num], entropy[:num]
        if not self._summed:
            torch._foreach_zero_(list(self._sums.values()))  # pyright: ignore[reportPrivateImportUsage]
            self._summed = True
        graphs.load(inputs)
        return _Replay.apply(self._anchor, graphs, num)  # pyright: ignore[reportReturnType]

    def add_to_masters(self) -> None:
        """Add the gradients summed since the last call to the gradients of the master weights."""
        if not self._summed:
            return
        for number, master in self._used.items():
            add_gradient(master, self._sums[number])
        self._summed = False

    def _graphs_for(self, inputs: ForwardInputs) -> "_Graphs | None":
        shape = shape_of(inputs)
        if shape not in self._graphs and shape in self._seen and len(self._graphs) < MOST_GRAPHS:
            self._graphs[shape] = _Graphs(inputs.to(self._device), self._compute, self._sum_gradient, self._record)
        self._seen.add(shape)
        return self._graphs.get(shape)

    def _sum_gradient(self, log_probs: Tensor, gradient: Tensor) -> None:
        gradients = torch.autograd.grad(log_probs, self._leaves, gradient, allow_unused=True)
        for master, part in zip(self._masters, gradients, strict=True):
            if part is not None:
                self._sums[id(master)].add_(part)
                self._used[id(master)] = master


class _Graphs:
    """The graphs of a forward and a backward pass of one shape; they read the tensors of `inputs`."""

    log_probs: Tensor
    entropy: Tensor

    def __init__(
        self,
        inputs: ForwardInputs,
        compute: Compute,
        sum_gradient: Callable[[Tensor, Tensor], None],
        record: "Record",
    ) -> None:
        self.inputs = inputs
        self.gradient = torch.zeros(len(inputs.targets), device=inputs.targets.device)
        """Gradient of the log-probs; zero during recording, so that nothing is added."""

        def forward() -> None:
            self.log_probs, self.entropy = compute(inputs)

        def backward() -> None:
            sum_gradient(self.log_probs, self.gradient)

        self.forward, self.backward = record(forward, backward)
        # Drop autograd's state of the recording, or later passes would use the recording's stream.
        self.log_probs, self.entropy = self.log_probs.detach(), self.entropy.detach()

    def load(self, inputs: ForwardInputs) -> None:
        """Copy in the values of another pass of this shape."""
        for own, new in zip(_tensors(self.inputs), _tensors(inputs), strict=True):
            own.copy_(new.pin_memory() if own.is_cuda else new, non_blocking=True)


def _tensors(inputs: ForwardInputs) -> tuple[Tensor, ...]:
    packing = inputs.packing
    return inputs.ids, packing.positions, packing.starts, packing.corners, inputs.place, inputs.targets


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx, anchor: Tensor, graphs: _Graphs, num: int) -> Scored:  # pyright: ignore[reportIncompatibleMethodOverride]
        graphs.forward()
        ctx.graphs, ctx.num = graphs, num
        # Return copies: another pass may overwrite the graph's buffers before these are read.
        log_probs, entropy = graphs.log_probs[:num].clone(), graphs.entropy[:num].clone()
        ctx.mark_non_differentiable(entropy)
        return log_probs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor, _: Tensor | None) -> tuple[None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        graphs: _Graphs = ctx.graphs
        graphs.gradient.zero_()
        graphs.gradient[: ctx.num].copy_(gradient)
        graphs.backward()
        return None, None, None


Work = Callable[[], None]
Record = Callable[[Work, Work], tuple[Work, Work]]
"""Records two functions, of which the second uses results of the first; returns functions that replay them."""


def recorder() -> Record:
    """Return a function that records CUDA graphs in one memory pool; no two of them run concurrently.

    Everything runs on one side stream, including warm-up: autograd's leaves stay on the stream that first used them.
    """
    pool, side_stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()

    def record(first: Work, second: Work) -> tuple[Work, Work]:
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):
            for _ in range(2):
                first()
                second()
        torch.cuda.current_stream().wait_stream(side_stream)
        graphs = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        for graph, work in zip(graphs, (first, second), strict=True):
            # Another thread may allocate host memory or wait for copies meanwhile.
            with torch.cuda.graph(graph, pool=pool, stream=side_stream, capture_error_mode="thread_local"):
                work()
        return graphs[0].replay, graphs[1].replay

    return record
