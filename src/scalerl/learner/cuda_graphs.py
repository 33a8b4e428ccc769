"""Small passes as CUDA graphs: a pass is hundreds of kernels, and a small model's take longer to launch than to run.

    asked -> padded to one of few shapes -> forward graph -> log-probs -> the loss, as ever -> backward graph -> sums

A graph holds for one shape, so sizes are rounded up and shapes come back. What pads is a sequence of its own that no
trained token sees, with a gradient of zero, so it adds nothing. The loss stays outside: it may ask the device things.
A shape is computed kernel by kernel the first time, since to record it takes as long as several passes.
"""

import warnings
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from scalerl.learner.batch import Pass
from scalerl.learner.body import add_gradient
from scalerl.learner.packed_attention import pack

MOST_WORK = 2**39
"""Tokens x parameters of a pass that is recorded: beyond it, kernels take longer than their launches, and their
memory, which graphs keep to themselves, is no longer small."""
LEAST_TOKENS = 1024
"""A model of which only smaller passes would be recorded has none recorded."""
MOST_GRAPHS = 64


def padded(asked: Pass) -> Pass:
    """The same in a rounded shape: what was asked comes first in the answer."""
    lengths = asked.packing.starts.diff().tolist()
    tokens = rounded_up(len(asked.ids), steps=8)
    # No longer than the longest: attention would leave the rest of it undefined, and 0 x NaN is no 0.
    full, rest = divmod(tokens - len(asked.ids), asked.packing.width)
    lengths += [asked.packing.width] * full + [rest] * (rest > 0)
    lengths += [0] * (rounded_up(len(lengths), steps=4) - len(lengths))
    unused = np.ones(tokens, dtype=np.bool_)
    unused[asked.place.numpy()] = False
    num_targets = min(rounded_up(len(asked.targets), steps=8), tokens)
    more = np.flatnonzero(unused)[: num_targets - len(asked.targets)]
    return Pass(
        ids=_longer(asked.ids, tokens),
        packing=pack(lengths),
        place=torch.cat([asked.place, torch.from_numpy(more)]),
        targets=_longer(asked.targets, num_targets),
        temperature=asked.temperature,
    )


def shape_of(asked: Pass) -> tuple[int, int, int, int, float]:
    """All that a graph depends on but the values of its tensors."""
    return len(asked.ids), len(asked.packing.starts), len(asked.targets), asked.packing.longest, asked.temperature


def rounded_up(number: int, *, steps: int) -> int:
    """The least of so many values an octave that is no smaller; at most 1 / steps larger."""
    step = max(1 << (number.bit_length() - 1), steps) // steps
    return -(-number // step) * step


def _longer(values: Tensor, length: int) -> Tensor:
    return torch.cat([values, values.new_zeros(length - len(values))])


def asks_device(
    compute: Callable[[Pass], tuple[Tensor, Tensor]], leaves: Sequence[tuple[Tensor, Tensor]], device: torch.device
) -> bool:
    """Whether a pass waits for something the device has computed, as routed experts do: then it is no graph."""
    place = torch.arange(5)
    asked = Pass(ids=0 * place, packing=pack([3, 2]), place=place, targets=0 * place, temperature=1.0).to(device)
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
    try:
        log_probs, _ = compute(asked)
        torch.autograd.grad(log_probs.sum(), [leaf for leaf, _ in leaves], allow_unused=True)
    except RuntimeError:
        return True
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return False


class PassGraphs:
    """Runs passes, and adds up the gradients of those that are graphs."""

    def __init__(
        self,
        compute: Callable[[Pass], tuple[Tensor, Tensor]],
        leaves: Sequence[tuple[Tensor, Tensor]],
        *,
        most_tokens: int,
        device: torch.device,
        record: "Record",
    ) -> None:
        """`compute` gives log-probs and entropies. Of the `leaves` of its autograd graph, each comes with the master
        that its gradient is for."""
        self._compute, self._device, self._most_tokens = compute, device, most_tokens
        self._leaves = [leaf for leaf, _ in leaves]
        self._masters = [master for _, master in leaves]
        self._sums = {id(master): torch.zeros_like(master, dtype=torch.float32) for master in self._masters}
        self._used: dict[int, Tensor] = {}
        """Masters that some graph has a gradient for."""
        self._summed = False
        self._seen: set[tuple] = set()
        self._graphs: dict[tuple, _Graphs] = {}
        self._record = record
        # What makes autograd run the backward graph.
        self._anchor = torch.zeros((), device=device, requires_grad=True)

    def __call__(self, asked: Pass) -> tuple[Tensor, Tensor]:
        """Log-probs, whose gradient can be taken, and entropies, whose cannot; `asked` is on the host."""
        num = len(asked.targets)
        if len(asked.ids) > self._most_tokens:
            return self._compute(asked)
        asked = padded(asked)
        graphs = self._graphs_of(asked)
        if graphs is None:
            log_probs, entropy = self._compute(asked)
            return log_probs[:num], entropy[:num]
        if not self._summed:
            torch._foreach_zero_(list(self._sums.values()))  # pyright: ignore[reportPrivateImportUsage]
            self._summed = True
        graphs.take(asked)
        return _Replay.apply(self._anchor, graphs, num)  # pyright: ignore[reportReturnType]

    def hand_over(self) -> None:
        """Add to the masters' gradients what was summed up since the last time."""
        if not self._summed:
            return
        for number, master in self._used.items():
            add_gradient(master, self._sums[number])
        self._summed = False

    def _graphs_of(self, asked: Pass) -> "_Graphs | None":
        shape = shape_of(asked)
        if shape not in self._graphs and shape in self._seen and len(self._graphs) < MOST_GRAPHS:
            self._graphs[shape] = _Graphs(asked.to(self._device), self._compute, self._sum_gradient, self._record)
        self._seen.add(shape)
        return self._graphs.get(shape)

    def _sum_gradient(self, log_probs: Tensor, gradient: Tensor) -> None:
        found = torch.autograd.grad(log_probs, self._leaves, gradient, allow_unused=True)
        for master, part in zip(self._masters, found, strict=True):
            if part is not None:
                self._sums[id(master)].add_(part)
                self._used[id(master)] = master


class _Graphs:
    """A forward and a backward pass of one shape, in the tensors of `asked`."""

    log_probs: Tensor
    entropy: Tensor

    def __init__(
        self,
        asked: Pass,
        compute: Callable[[Pass], tuple[Tensor, Tensor]],
        sum_gradient: Callable[[Tensor, Tensor], None],
        record: "Record",
    ) -> None:
        self.asked = asked
        self.gradient = torch.zeros(len(asked.targets), device=asked.targets.device)
        """Of the log-probs: zero while recording, so that nothing is added."""

        def forward() -> None:
            self.log_probs, self.entropy = compute(asked)

        def backward() -> None:
            sum_gradient(self.log_probs, self.gradient)

        self.forward, self.backward = record(forward, backward)
        # What autograd keeps of a recording must not outlive it: plain passes would meet its streams there.
        self.log_probs, self.entropy = self.log_probs.detach(), self.entropy.detach()

    def take(self, asked: Pass) -> None:
        """The values of another pass of this shape."""
        for own, new in zip(_tensors(self.asked), _tensors(asked), strict=True):
            own.copy_(new.pin_memory() if own.is_cuda else new, non_blocking=True)


def _tensors(asked: Pass) -> tuple[Tensor, ...]:
    packing = asked.packing
    return asked.ids, packing.positions, packing.starts, packing.corners, asked.place, asked.targets


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx, anchor: Tensor, graphs: _Graphs, num: int) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        graphs.forward()
        ctx.graphs, ctx.num = graphs, num
        # Copies: another pass may write to the graph's own before these are read for the last time.
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
"""Of two pieces of work, the second of which uses what the first leaves; gives what repeats each."""


def recorder() -> Record:
    """Records CUDA graphs, all in one pool of memory, since none runs beside another.

    On one stream, from the first time to warm up: autograd's leaves keep to the one they were first met on.
    """
    pool, aside = torch.cuda.graph_pool_handle(), torch.cuda.Stream()

    def record(first: Work, second: Work) -> tuple[Work, Work]:
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(2):
                first()
                second()
        torch.cuda.current_stream().wait_stream(aside)
        graphs = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        for graph, work in zip(graphs, (first, second), strict=True):
            with torch.cuda.graph(graph, pool=pool, stream=aside):
                work()
        return graphs[0].replay, graphs[1].replay

    return record
