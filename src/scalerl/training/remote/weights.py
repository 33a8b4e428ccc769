"""Send weights from a learner to engines in other processes: a small parcel is sent, and its tensors stay in place.

    InMemory   tensors in a block of this machine's shared memory, without a file that could be left behind
    OnGpu      handles of the learner's GPU memory (CUDA IPC); others must read it before the learner continues
    InStore    references to buckets of bytes in Ray's object store, for any node

A parcel is a mapping, so that the loop can pass it on as weights; its tensors are opened when they are used.
"""

import fcntl
import mmap
import os
import uuid
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

BUCKET_BYTES = 64 * 2**20
_ALIGNED = 64
"""Tensors start at multiples of this, so that views of any dtype are aligned."""


class WeightsFreed(Exception):
    """The weights of a parcel have been freed, because a newer parcel follows."""


class Unmapped(Exception):
    """The learner's GPU memory cannot be shared with another process; the weights must be sent as a copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpan:
    """The position of a tensor in a block of bytes."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class Parcel(Mapping[str, Any]):
    """Weights that can be pickled and opened in another process. Opened tensors must not be modified."""

    is_borrowed = False
    """Whether the tensors are the learner's own memory, which changes in its next step."""
    _opened: "dict[str, Tensor] | None" = None

    @abstractmethod
    def open(self) -> "dict[str, Tensor]":
        """Return the tensors; WeightsFreed if the learner has freed them, Unmapped if they cannot be mapped."""

    @contextmanager
    def held(self) -> "Iterator[Parcel]":
        """Keep the weights during this context, so that other processes can open them; WeightsFreed if too late."""
        yield self

    def wait_for_copies(self) -> None:
        """Wait until this process and its devices have finished reading opened tensors."""

    @abstractmethod
    def names(self) -> Iterable[str]:
        """Return the names of the tensors without opening them."""

    def __getitem__(self, name: str) -> Any:
        return self._tensors()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return sum(1 for _ in self.names())

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_opened"}

    def _tensors(self) -> "dict[str, Tensor]":
        if self._opened is None:
            self._opened = self.open()
        return self._opened


# Shared memory --------------------------------------------------------------------------------------------------------


class InMemory(Parcel):
    """Tensors in a block of memory of another process. While somebody reads the block, it is not overwritten."""

    def __init__(self, path: str, mark: bytes, num_bytes: int, spans: Mapping[str, TensorSpan]) -> None:
        """The block begins with `mark` as long as it contains these tensors."""
        self._path = path
        self._mark = mark
        self._num_bytes = num_bytes
        self._spans = spans

    def names(self) -> Iterable[str]:
        return self._spans

    @contextmanager
    def held(self) -> "Iterator[InMemory]":
        try:
            file = os.open(self._path, os.O_RDWR)
        except OSError:
            raise WeightsFreed from None
        try:
            try:
                # The lock is held until this file and all mappings of it are closed.
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                is_here = os.pread(file, len(self._mark), 0) == self._mark
            except OSError:  # It is being overwritten, or the path belongs to another file by now.
                is_here = False
            if not is_here:
                raise WeightsFreed
            yield InMemory(f"/proc/{os.getpid()}/fd/{file}", self._mark, self._num_bytes, self._spans)
        finally:
            os.close(file)

    def open(self) -> "dict[str, Tensor]":
        """Map the block, which is then not overwritten until the tensors are dropped."""
        import torch

        with self.held() as own:
            file = int(own._path.rpartition("/")[2])
            block = mmap.mmap(file, self._num_bytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        raw = torch.frombuffer(block, dtype=torch.uint8)
        return {name: _viewed(raw[span.start : span.end], span.dtype, span.shape) for name, span in self._spans.items()}


class SharedMemory:
    """Copies weights into memory that other processes on this machine can map.

    Unused blocks are overwritten, because allocating memory takes longer than the copy; so there are rarely two.
    """

    def __init__(self) -> None:
        self._blocks: list[tuple[int, Tensor]] = []
        """Unnamed files, each mapped once for writing: a new mapping would have to look up every page again."""

    @property
    def num_blocks(self) -> int:
        return len(self._blocks)

    def publish(self, named: "Iterable[tuple[str, Tensor]]") -> InMemory:
        """Copy tensors one by one, so that only one gathered tensor exists at a time.

        Earlier parcels become invalid, unless they are being read.
        """
        file, block = self._unread()
        mark = uuid.uuid4().bytes
        spans: dict[str, TensorSpan] = {}
        end = _ALIGNED
        os.pwrite(file, mark, 0)
        for name, tensor in named:
            raw = _raw(tensor)
            start = -(-end // _ALIGNED) * _ALIGNED
            end = start + len(raw)
            block[start:end].copy_(raw)
            spans[name] = TensorSpan(dtype=_dtype(tensor), shape=tuple(tensor.shape), start=start, end=end)
        fcntl.flock(file, fcntl.LOCK_UN)
        return InMemory(f"/proc/{os.getpid()}/fd/{file}", mark, end, spans)

    def close(self) -> None:
        """Free the memory; it remains for processes that have mapped it."""
        for file, _ in self._blocks:
            os.close(file)
        self._blocks = []

    def _unread(self) -> "tuple[int, Tensor]":
        """Return an unused block, locked."""
        import torch

        for file, block in self._blocks:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return file, block
        file = os.memfd_create("scalerl-weights")
        # The file is as large as this machine's memory, but takes only what is written to it.
        os.ftruncate(file, os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._blocks.append((file, torch.frombuffer(mmap.mmap(file, 0), dtype=torch.uint8)))
        return self._blocks[-1]


def _raw(tensor: "Tensor") -> "Tensor":
    """Return the bytes of a tensor."""
    import torch

    # reshape(-1): a scalar cannot be viewed as bytes.
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else torch.empty(0).byte()


def _dtype(tensor: "Tensor") -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _viewed(raw: "Tensor", dtype: str, shape: tuple[int, ...]) -> "Tensor":
    """Return the tensor with these bytes."""
    import torch

    # No bytes cannot be viewed with another dtype.
    own = getattr(torch, dtype)
    return (raw.view(own) if len(raw) else raw.to(own)).reshape(shape)


# GPU memory -----------------------------------------------------------------------------------------------------------


class OnGpu(Parcel):
    """Handles of tensors on a GPU of this machine. Nothing is copied until another process opens it."""

    is_borrowed = True

    def __init__(self, weights: "Mapping[str, Tensor]") -> None:
        """Raise Unmapped if CUDA cannot make handles of this memory."""
        import torch
        from torch.multiprocessing.reductions import reduce_tensor

        with _or_unmapped():
            self._handles = tuple((name, reduce_tensor(weight.detach())[1]) for name, weight in weights.items())
        device = next(iter(weights.values())).device
        # The step that computes these weights must be complete before another process reads them.
        torch.cuda.synchronize(device)
        # Use the UUID: the device's number may differ between processes.
        self._uuid = str(torch.cuda.get_device_properties(device).uuid)

    def names(self) -> Iterable[str]:
        return (name for name, _ in self._handles)

    def open(self) -> "dict[str, Tensor]":
        with _or_unmapped():
            number = _device_number(self._uuid)
            return {name: map_tensor(handle, number) for name, handle in self._handles}

    def wait_for_copies(self) -> None:
        import torch

        # The stream of the target GPU waits for a copy between GPUs.
        torch.cuda.synchronize()


def map_tensor(handle: tuple[Any, ...], number: int) -> "Tensor":
    """Return a tensor in another process's GPU memory; `number` is the number of its device in this process."""
    from torch.multiprocessing.reductions import rebuild_cuda_tensor

    # The seventh argument is the device's number in the process that sent the handle.
    arguments: list[Any] = [*handle[:6], number, *handle[7:]]
    return rebuild_cuda_tensor(*arguments)


@contextmanager
def _or_unmapped() -> Iterator[None]:
    """Turn torch's errors about memory that cannot be shared into Unmapped, with their first line."""
    try:
        yield
    except RuntimeError as error:
        raise Unmapped(str(error).partition("\n")[0] or type(error).__name__) from error


def _device_number(uuid: str) -> int:
    import torch

    for number in range(torch.cuda.device_count()):
        if str(torch.cuda.get_device_properties(number).uuid) == uuid:
            return number
    raise RuntimeError(
        f"the learner's GPU {uuid} is not visible to a generator, which reads weights from its memory: add it to "
        f"CUDA_VISIBLE_DEVICES"
    )


# Ray's object store ---------------------------------------------------------------------------------------------------


class InStore(Parcel):
    """References to buckets, each with the bytes, dtypes and shapes of several tensors."""

    def __init__(self, buckets: Iterable[tuple[tuple[str, ...], Any]]) -> None:
        """`buckets` are the names of the tensors of each bucket, and a reference to it."""
        self.buckets = tuple(buckets)

    def names(self) -> Iterable[str]:
        return (name for names, _ in self.buckets for name in names)

    def open(self) -> "dict[str, Tensor]":
        import ray

        tensors: dict[str, Tensor] = {}
        for _, reference in self.buckets:
            tensors |= unpack(ray.get(reference))
        return tensors


Bucket = dict[str, tuple[NDArray[np.uint8], str, tuple[int, ...]]]
"""The bytes, dtype and shape of tensors by name. Ray stores arrays as they are, and maps them in other processes."""


def store(named: "Iterable[tuple[str, Tensor]]") -> InStore:
    """Put tensors into Ray's object store, in buckets."""
    import ray

    return InStore((tuple(bucket), ray.put(bucket)) for bucket in pack(named))


def pack(named: "Iterable[tuple[str, Tensor]]", *, bucket_bytes: int = BUCKET_BYTES) -> Iterator[Bucket]:
    """Yield the tensors in buckets: as many as it takes to have `bucket_bytes`."""
    bucket = Bucket()
    num_bytes = 0
    for name, tensor in named:
        # A copy: numpy() would prevent FSDP from freeing the memory of a gathered weight.
        raw = _raw(tensor).to("cpu", copy=True)
        bucket[name] = raw.numpy(), _dtype(tensor), tuple(tensor.shape)
        num_bytes += len(raw)
        if num_bytes >= bucket_bytes:
            yield bucket
            bucket = Bucket()
            num_bytes = 0
    if bucket:
        yield bucket


def unpack(bucket: Bucket) -> "dict[str, Tensor]":
    """Return the tensors of a bucket, which share its memory."""
    import torch

    with warnings.catch_warnings():
        # The memory of the object store is read-only, but engines only copy from it.
        warnings.simplefilter("ignore")
        return {name: _viewed(torch.from_numpy(data), dtype, shape) for name, (data, dtype, shape) in bucket.items()}


# How a driver publishes -----------------------------------------------------------------------------------------------


class Publisher:
    """Makes parcels of weights for processes on this machine or, `on_ray`, on any node. A parcel is returned unchanged.

    `borrow` returns a parcel of weights that are not copied, or None if that is impossible.
    """

    def __init__(
        self, *, on_ray: bool = False, borrow: "Callable[[Mapping[str, Any]], Parcel | None] | None" = None
    ) -> None:
        self._on_ray = on_ray
        self._borrow = borrow
        self._shared = SharedMemory()

    def __call__(self, weights: Mapping[str, Any]) -> Parcel:
        if isinstance(weights, Parcel):
            return weights
        try:
            if self._borrow is not None and (borrowed := self._borrow(weights)) is not None:
                return borrowed
        except Unmapped as error:
            self.stop_borrowing(str(error))
        return store(weights.items()) if self._on_ray else self._shared.publish(weights.items())

    def stop_borrowing(self, reason: str) -> None:
        """Copy weights from now on, because other processes cannot map the learner's memory."""
        if self._borrow is not None:
            self._borrow = None
            warnings.warn(
                f"the learner's GPU memory cannot be shared with another process ({reason}): weights are sent through "
                f"host memory from now on, which takes longer",
                stacklevel=2,
            )


def borrowed(weights: Mapping[str, Any]) -> OnGpu | None:
    """Return a parcel of weights that stay where they are, on a GPU of this machine; None if they are elsewhere."""
    return OnGpu(weights) if all(weight.is_cuda for weight in weights.values()) else None
