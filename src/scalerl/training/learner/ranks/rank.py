"""One rank of a learner: it joins the others, holds its part of the model and executes commands.

All ranks get every command, in the same order, because commands contain collective operations. `LearnerRank` is a plain
class: a process on this or another machine creates it and calls its methods (training/remote/serve.py).
"""

import datetime
import os
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from scalerl.errors import LearnerError, ModelError, RunFolderError
from scalerl.recipe.parts import LearnerSettings, LoraSettings
from scalerl.training.learner.saved import SavedTensors, file_name, write_tensors
from scalerl.training.learner.state import first_row, local
from scalerl.training.models.load import model_folder
from scalerl.training.models.lora import NamedTensors
from scalerl.training.models.shape import ModelShape
from scalerl.training.remote.weights import Parcel, SharedMemory, store
from scalerl.training.types import Batch

_HostCopy = tuple[dict[str, Tensor], dict[str, tuple[int, int]]]
"""A rank's rows of tensors by name; and of each, the first row and the number of rows of the whole tensor."""
_SEEN_S = 10.0
"""Time limit for a file of another machine to appear on a shared file system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpec:
    """Everything that a rank needs except its number. It can be pickled."""

    learner: LearnerSettings
    address: str
    meeting: str
    """Where ranks find each other: a file of the process that starts them, or HOST:PORT of its TCPStore."""
    model: str
    """Name or path of the model, as every rank finds it on its own node."""
    settings: Callable[[], Mapping[str, Any]]
    """A function of a module that returns the arguments of torch_learner, and `lora`."""
    device: Literal["cpu", "cuda"] = "cpu"
    devices: tuple[int, ...] = ()
    """Device number of each rank, among the devices that it sees; by default the number of the rank."""
    seed: int = 0
    version: int = 0
    threads: int = 0
    """Number of threads for torch; 0 leaves it unchanged."""
    timeout_s: float = 600.0
    """Time limit for a collective operation."""
    on_ray: bool = False
    """Whether ranks are Ray actors, which publish weights through Ray's object store."""


def _store_at(meeting: str, timeout: datetime.timedelta) -> Any:
    import torch.distributed as dist

    if meeting.startswith("/"):
        store: Any = dist.FileStore(meeting)  # pyright: ignore[reportPrivateImportUsage]
        store.set_timeout(timeout)
        return store
    host, _, port = meeting.rpartition(":")
    return dist.TCPStore(host, int(port), is_master=False, timeout=timeout)  # pyright: ignore[reportPrivateImportUsage]


class LearnerRank:
    """One process of a learner over several ranks."""

    def __init__(self, spec: RankSpec, rank: int) -> None:
        from transformers.utils import logging

        logging.disable_progress_bar()
        self._spec = spec
        self.rank = rank
        if spec.threads:
            torch.set_num_threads(spec.threads)
        self._device = torch.device(spec.device, spec.devices[rank] if spec.devices else rank)
        if spec.device == "cuda":
            torch.cuda.set_device(self._device)
        else:
            self._device = torch.device("cpu")
        self._shared = SharedMemory()
        self._folder = self._join()
        self.learner = self._build()
        self._snapshot: dict[str, _HostCopy] = {}
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="write")
        self._writing: Future[None] | None = None

    def step(self, batch: Batch) -> dict[str, float]:
        """Train on this rank's share of the batch; metrics are those of the whole batch."""
        return dict(self.learner.step(batch))

    def mean_loss(self, batch: Batch) -> float:
        """Return the loss of the whole batch without training on it."""
        return self.learner.mean_loss(batch)

    def publish(self) -> Parcel | None:
        """Gather the weights together with the other ranks; rank 0 returns a parcel for engines."""
        named = self.named_weights()
        if self.rank == 0:
            return store(named) if self._spec.on_ray else self._shared.publish(named)
        for _ in named:
            pass
        return None

    def named_weights(self) -> NamedTensors:
        """Yield all weights, gathered one by one; every rank must iterate to the end."""
        return self.learner.policy.weights()

    def see(self, path: str) -> None:
        """Raise RunFolderError if this rank cannot see a file or folder of the run folder."""
        check_visible(Path(path), rank=self.rank)

    def facts(self) -> tuple[int, ModelShape]:
        """Return the learner's version, and the shape of its model."""
        return self.learner.version, self.learner.shape

    def snapshot(self) -> None:
        """Copy this rank's part of the state to host memory, unless another rank writes the same part.

        Training continues while `write` writes the copy.
        """
        self._snapshot = {}
        num_writers = self._shard_size if self._is_divided else 1
        if self.rank >= num_writers:
            return
        self._snapshot = {kind: _host_copies(tensors) for kind, tensors in self.learner.state_dict().items()}
        if self.rank > 0:
            # These are equal on all ranks, so only the first rank writes them.
            self._snapshot = {kind: self._snapshot[kind] for kind in ("weights", "optimizer")}

    def write(self, folder: str) -> None:
        """Begin to write the last snapshot to a folder."""
        if self._snapshot:
            self.see(folder)
            self._writing = self._writer.submit(self._write, Path(folder), self._snapshot)
            self._snapshot = {}

    def has_written(self) -> bool:
        """Return whether the last snapshot is written; LearnerError if that failed."""
        if self._writing is None or not self._writing.done():
            return self._writing is None
        writing = self._writing
        self._writing = None
        try:
            writing.result()
        except Exception as error:
            raise LearnerError(f"rank {self.rank} could not write its part of the checkpoint: {error}") from error
        return True

    def load(self, folder: str) -> int:
        """Restore the state from a checkpoint of any number of ranks; return its version."""
        self.see(folder)
        self.learner.load_state_dict(SavedTensors(Path(folder)))
        return self.learner.version

    def close(self) -> None:
        """Leave the process group."""
        self._writer.shutdown()
        torch.distributed.destroy_process_group()

    @property
    def _is_divided(self) -> bool:
        """Whether this rank has only a part of the weights."""
        return self._spec.learner.sharding != "replicate"

    @property
    def _shard_size(self) -> int:
        """Number of ranks that hold one copy of the weights together."""
        return self._spec.learner.shard_size or self._spec.learner.ranks

    def _join(self) -> str:
        """Find the model, wait until all ranks have it, join them, and return its folder."""
        import torch.distributed as dist

        spec = self._spec
        wait = datetime.timedelta(seconds=self._spec.timeout_s)
        meeting = _store_at(spec.meeting, wait)
        try:
            folder = spec.model if Path(spec.model).is_dir() else str(model_folder(spec.model))
        except ModelError as error:
            raise ModelError(f"rank {self.rank} of the learner, on {socket.gethostname()}: {error}") from error
        # Wait for downloads here: collective operations have a shorter time limit.
        meeting.set(f"found/{self.rank}", "")
        found = [f"found/{rank}" for rank in range(spec.learner.ranks)]
        meeting.wait(found, datetime.timedelta(seconds=spec.learner.start_s))
        dist.init_process_group(
            "nccl" if spec.device == "cuda" else "gloo",
            store=meeting,
            rank=self.rank,
            world_size=spec.learner.ranks,
            timeout=wait,
            device_id=self._device if spec.device == "cuda" else None,
        )
        return folder

    def _build(self) -> Any:
        from scalerl.training.learner import torch_learner
        from scalerl.training.learner.ranks.sharded import ShardedPolicy, device_mesh
        from scalerl.training.learner.step import TorchLearner
        from scalerl.training.learner.team import Team

        spec = self._spec
        settings = dict(self._spec.settings())
        lora = settings.pop("lora", LoraSettings())
        learner = spec.learner
        team = Team(rank=self.rank, size=learner.ranks)
        torch.manual_seed(spec.seed)
        if not self._is_divided:
            model = _whole_model(self._folder, self._device, lora)
            return torch_learner(model, team=team, version=spec.version, **settings)
        policy = ShardedPolicy(
            Path(self._folder),
            device_mesh(self._device, learner.ranks, self._shard_size),
            learner,
            device=self._device,
            lora=lora,
            **{
                name: settings.pop(name)
                for name in ("dtype", "fp32_head", "router_replay", "merges")
                if name in settings
            },
        )
        # config.recipe rejects references that need a second model.
        reference = settings.pop("reference", None)
        made = None if reference is None else reference(None)
        return TorchLearner(policy, reference=made, team=team, version=spec.version, **settings)

    def _write(self, folder: Path, snapshot: Mapping[str, _HostCopy]) -> None:
        for kind, (parts, rows) in snapshot.items():
            divided = self._is_divided and kind in ("weights", "optimizer")
            name = file_name(kind, self.rank, self._shard_size) if divided else file_name(kind)
            write_tensors(folder / name, parts, rows if divided else {})


def check_visible(path: Path, *, rank: int, wait_s: float = _SEEN_S) -> None:
    """Raise RunFolderError if a rank cannot see a file that the driver wrote, or cannot write to its folder."""
    deadline = time.monotonic() + wait_s
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    folder = path if path.is_dir() else path.parent
    fault = ""
    if not path.exists():
        fault = "does not see"
    elif not os.access(folder, os.W_OK):
        fault = "may not write to"
    if fault:
        raise RunFolderError(
            f"rank {rank} of the learner, on {socket.gethostname()}, {fault} {folder}, where it reads and writes its "
            f"part of checkpoints: put the run folder (--out) on a file system that all nodes share"
        )


def _host_copies(tensors: Mapping[str, Tensor]) -> _HostCopy:
    """Return host copies of this rank's rows, with the position of each; parts without rows are left out."""
    parts = {}
    rows = {}
    for name, tensor in tensors.items():
        part = local(tensor).detach()
        if tensor.ndim and not part.numel():
            continue
        parts[name] = part.to("cpu", copy=True)
        if tensor.ndim:
            rows[name] = (first_row(tensor), len(tensor))
    return parts, rows


def _whole_model(folder: str, device: torch.device, lora: LoraSettings) -> Any:
    from transformers import AutoModelForCausalLM

    from scalerl.training.models.load import put_on_device
    from scalerl.training.models.lora import master_dtype, wrap

    loaded: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=master_dtype(lora) or "auto", use_safetensors=True, attn_implementation="sdpa"
    )
    put_on_device(loaded, device, bits=lora.bits)
    return wrap(loaded, lora)
