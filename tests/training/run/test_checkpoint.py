import errno
import json
import os
import shutil
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from batches import VERSION, random_batch
from learners import make_learner
from safetensors import SafetensorError
from safetensors.torch import load_file
from until import wait_until

from scalerl.errors import CheckpointError, StoreError
from scalerl.recipe.parts import CheckpointSettings
from scalerl.training.learner import saved
from scalerl.training.learner.saved import write_tensors
from scalerl.training.run import aside, checkpoint
from scalerl.training.run.aside import StateCopier
from scalerl.training.run.checkpoint import Checkpoint, Checkpoints, latest, load, save

# Of a CPU without bf16 instructions, where the products are computed the slow way.
pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")


def simple(step, value=0.0):
    return Checkpoint(
        step=step,
        tensors={"weights": {"w": torch.full((3, 4), value), "b": torch.arange(5).to(torch.bfloat16)}, "none": {}},
        arrays={"groups": {"tokens": np.arange(step, dtype=np.int32), "forced": np.array([True, False])}},
        meta={"clock": {"gpu_hours": 1.5}, "in_flight": ["0/a", "0/b"], "nothing": None},
    )


def step_of(folder):
    newest = latest(folder)
    return newest and newest.step


def content(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_saved_state_is_restored_exactly(tmp_path):
    written = Checkpoint(
        step=7,
        tensors={
            "weights": {"w": torch.randn(3, 4).T, "scalar": torch.tensor(3)},
            "rng": {"cpu": torch.get_rng_state()},
        },
        arrays={"groups": {"a": np.arange(6, dtype=np.int32)[::2], "empty": np.zeros((0, 2)), "one": np.array(1.5)}},
        meta={"clock": {"gpu_hours": 0.1 + 0.2}, "keys": ["a", "b"]},
    )
    path = save(tmp_path / "checkpoints", written)
    assert path.name == "step-00000007"
    assert {file.suffix for file in path.iterdir()} == {".json", ".safetensors"}
    read = latest(tmp_path / "checkpoints")
    assert read is not None
    assert read.step == 7
    assert read.meta == written.meta
    for name, tensors in written.read_tensors.items():
        assert read.read_tensors[name].keys() == tensors.keys()
        for key, tensor in tensors.items():
            assert read.read_tensors[name][key].dtype == tensor.dtype
            assert torch.equal(read.read_tensors[name][key], tensor)
    for key, array in written.arrays["groups"].items():
        assert read.arrays["groups"][key].dtype == array.dtype
        assert read.arrays["groups"][key].shape == array.shape
        assert np.array_equal(read.arrays["groups"][key], array)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_resumed_learner_goes_the_same_way_bit_for_bit(tmp_path, dtype):
    settings = (f"model.dtype={dtype}", "optimizer.warmup_steps=4")
    whole = make_learner(*settings)
    for step in range(3):
        whole.step(random_batch(step, version=VERSION + step))
    save(tmp_path, Checkpoint(step=whole.version, tensors=whole.state_dict()))
    expected_noise = torch.rand(3)
    rows = [whole.step(random_batch(step, version=VERSION + step)) for step in range(3, 6)]

    resumed = make_learner(*settings, seed=1)
    newest = latest(tmp_path)
    assert newest is not None
    resumed.load_state_dict(newest.tensors)
    assert torch.equal(torch.rand(3), expected_noise)
    assert resumed.version == VERSION + 3
    assert [resumed.step(random_batch(step, version=VERSION + step)) for step in range(3, 6)] == rows
    for name, weight in resumed.weights().items():
        assert torch.equal(weight, whole.weights()[name]), name


def test_learner_without_a_step_can_be_saved(tmp_path):
    first, second = make_learner(), make_learner(seed=1)
    second.step(random_batch(1))  # its moments must go
    second.load_state_dict(load(save(tmp_path, Checkpoint(step=0, tensors=first.state_dict()))).tensors)
    assert second.step(random_batch(0)) == first.step(random_batch(0))
    for name, weight in second.weights().items():
        assert torch.equal(weight, first.weights()[name]), name
    # Nor does a learner change the state that it was given.
    state = first.state_dict()
    before = {part: {name: value.clone() for name, value in values.items()} for part, values in state.items()}
    second.load_state_dict(state)
    second.step(random_batch(1, version=VERSION + 1))
    for part, values in before.items():
        for name, value in values.items():
            assert torch.equal(state[part][name], value), (part, name)


def test_another_models_weights_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"to another model: only one of the two has lm_head.weight"):
        make_learner(family="smollm").load_state_dict(make_learner(family="llama").state_dict())


def test_the_last_ones_are_kept(tmp_path):
    assert latest(tmp_path) is None
    assert latest(tmp_path / "nowhere") is None
    for step in (1, 20, 300, 4000):
        save(tmp_path, simple(step), keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000300", "step-00004000"]
    assert step_of(tmp_path) == 4000


def test_saving_a_step_again_never_loses_it(tmp_path, monkeypatch):
    save(tmp_path, simple(2, value=1.0))
    rename = os.rename

    def stopped_at_once(old, new):
        if ".replaced" not in str(new) and ".replaced" not in str(old):
            raise KeyboardInterrupt
        rename(old, new)

    monkeypatch.setattr(os, "rename", stopped_at_once)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, simple(2, value=2.0))
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]
    assert load(tmp_path / "step-00000002").read_tensors["weights"]["w"][0, 0] == 1.0
    monkeypatch.undo()
    assert load(save(tmp_path, simple(2, value=2.0))).read_tensors["weights"]["w"][0, 0] == 2.0
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]


@pytest.mark.parametrize(
    "file, change, fault",
    [
        ("tensors.weights.safetensors", lambda data: data[:-3], "has [0-9]+ bytes instead of [0-9]+"),
        ("tensors.weights.safetensors", lambda data: data[:-1] + b"\x7f", "has changed since it was written"),
        ("meta.json", lambda data: None, "meta.json is missing"),
        ("manifest.json", lambda data: data[:20], "manifest.json is missing or incomplete"),
        ("manifest.json", lambda data: data.replace(b'"format": 2', b'"format": 9'), "its format is 9"),
    ],
)
def test_damaged_checkpoint_error_names_the_older_one(tmp_path, file, change, fault):
    save(tmp_path, simple(1))
    newest = save(tmp_path, simple(2))
    changed = change((newest / file).read_bytes())
    if changed is None:
        (newest / file).unlink()
    else:
        (newest / file).write_bytes(changed)
    with pytest.raises(CheckpointError, match=f"step-00000002 is damaged .*{fault}.*the older step-00000001 is intact"):
        latest(tmp_path)
    with pytest.raises(CheckpointError, match=f"step-00000002 is damaged .*{fault}"):
        load(newest)
    newest.rename(tmp_path / "step-00000002.damaged")
    oldest = tmp_path / "step-00000001"
    assert step_of(tmp_path) == 1
    (oldest / "meta.json").unlink()
    with pytest.raises(CheckpointError, match=r"step-00000001 is damaged .* and no older one is intact"):
        latest(tmp_path)


@pytest.mark.parametrize(
    "error, reason",
    [
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full"),
        (
            SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
            "the disk is full",
        ),
        (OSError(errno.EACCES, "Permission denied"), "Permission denied"),
    ],
)
def test_a_full_disk_leaves_the_old_one_and_no_remains(tmp_path, monkeypatch, error, reason):
    save(tmp_path, simple(1))
    before = content(tmp_path)

    def fail(*arguments):
        raise error

    monkeypatch.setattr("safetensors.numpy.save_file", fail)
    with pytest.raises(StoreError, match=f"cannot write .*step-00000002: .*{reason}; what was there before is kept"):
        save(tmp_path, simple(2))
    assert content(tmp_path) == before
    assert step_of(tmp_path) == 1


def test_unfinished_checkpoint_is_ignored_and_removed(tmp_path):
    save(tmp_path, simple(1))
    remains = tmp_path / "step-00000002.unfinished"
    remains.mkdir()
    (remains / "meta.json").write_text("{")
    assert step_of(tmp_path) == 1
    save(tmp_path, simple(3))
    assert not remains.exists()


@pytest.mark.parametrize("value", [object(), float("nan")])
def test_meta_must_be_json(tmp_path, value):
    save(tmp_path, simple(1))
    before = content(tmp_path)
    with pytest.raises((TypeError, ValueError), match="JSON"):
        save(tmp_path, Checkpoint(step=1, meta={"a": value}))
    assert content(tmp_path) == before


HOSTILE_MANIFESTS = {
    "a device": {"../../../../../../../../../dev/zero": {"bytes": 0, "crc32": 0}},
    "another file": {"/etc/passwd": {"bytes": 0, "crc32": 0}},
    "a null byte": {"a\0": {"bytes": 0, "crc32": 0}},
    "a list": [],
    "no sizes": {"meta.json": {}},
    "no state": {},
}


@pytest.mark.parametrize("files", HOSTILE_MANIFESTS.values(), ids=HOSTILE_MANIFESTS.keys())
def test_manifest_cannot_name_files_elsewhere(tmp_path, files):
    save(tmp_path, simple(3))
    manifest = tmp_path / "step-00000003" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"files": files}))
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        latest(tmp_path)


def test_link_is_not_a_file_of_a_checkpoint(tmp_path):
    path = save(tmp_path, simple(3))
    (path / "meta.json").rename(tmp_path / "elsewhere")
    (path / "meta.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=r"meta\.json is not a file"):
        latest(tmp_path)


def test_unreadable_state_is_reported_in_one_sentence(tmp_path):
    path = save(tmp_path, simple(3))
    (path / "meta.json").write_text("[" * 100_000)
    manifest = json.loads((path / "manifest.json").read_text())
    data = (path / "meta.json").read_bytes()
    manifest["files"]["meta.json"] = {"bytes": len(data), "crc32": zlib.crc32(data)}
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="nested too deeply"):
        latest(tmp_path)


def clones(state):
    return {kind: {name: values.clone() for name, values in named.items()} for kind, named in state.items()}


def test_copy_is_not_changed_by_later_steps(tmp_path):
    learner = make_learner("optimizer.warmup_steps=4")
    learner.step(random_batch(0, version=VERSION))
    expected = clones(learner.state_dict())
    copied = StateCopier().copy(learner.state_dict())
    assert copied is not None
    learner.step(random_batch(1, version=VERSION + 1))
    torch.rand(3)
    first = next(iter(expected["weights"]))
    assert not torch.equal(learner.state_dict()["weights"][first], expected["weights"][first])
    read = load(save(tmp_path, Checkpoint(step=1, tensors=copied))).read_tensors
    for kind, named in expected.items():
        assert read[kind].keys() == named.keys()
        for name, values in named.items():
            assert torch.equal(read[kind][name], values), (kind, name)


def test_memory_of_a_copy_is_used_again():
    learner, copier = make_learner(), StateCopier()
    first = copier.copy(learner.state_dict())
    second = copier.copy(learner.state_dict())
    assert first is not None
    assert second is not None
    places = [
        [values.data_ptr() for named in copied._tensors.values() for values in named.values()]
        for copied in (first, second)
    ]
    assert places[0] == places[1]
    assert first.num_bytes == sum(each.nbytes for named in learner.state_dict().values() for each in named.values())


def test_without_memory_for_a_copy_nothing_is_copied(monkeypatch):
    learner = make_learner()
    monkeypatch.setattr(aside, "host_free_bytes", lambda: 1000)
    assert StateCopier().copy(learner.state_dict()) is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_files_are_those_of_safetensors(tmp_path, dtype):
    tensors = {
        "odd": torch.arange(7).to(dtype),
        "byte": torch.tensor([1, 2, 3], dtype=torch.uint8),
        "turned": torch.arange(12).to(dtype).view(3, 4).T,
        "empty": torch.zeros(0, 3, dtype=dtype),
        "scalar": torch.tensor(1).to(dtype),
    }
    path = tmp_path / "tensors.safetensors"
    crc = write_tensors(path, tensors)
    assert crc == zlib.crc32(path.read_bytes())
    read = load_file(path)
    assert read.keys() == tensors.keys()
    for name, values in tensors.items():
        assert read[name].dtype == values.dtype
        assert torch.equal(read[name], values)


KILLED = """
import sys, torch
from pathlib import Path
from scalerl.training.run.checkpoint import Checkpoint, save
folder = Path(sys.argv[1])
save(folder, Checkpoint(step=1, tensors={"weights": {"w": torch.arange(5)}}))
print("saved", flush=True)
save(folder, Checkpoint(step=2, tensors={"weights": {str(i): torch.zeros(1 << 24) for i in range(8)}}))
"""


def test_kill_during_a_write_leaves_the_former_one(tmp_path):
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"saved\n"
        written = tmp_path / "step-00000002.unfinished" / "tensors.weights.safetensors"
        wait_until(written.exists)
        process.kill()
    assert written.exists()
    assert step_of(tmp_path) == 1
    save(tmp_path, simple(3))
    assert not written.exists()
    assert step_of(tmp_path) == 3


class Saving:
    """A hook of checkpoints whose steps are set by hand."""

    def __init__(self, folder, **settings):
        self.step, self.failures = 0, []
        self.hook = Checkpoints(
            folder=folder,
            settings=CheckpointSettings(every=1, **settings),
            step=lambda: self.step,
            content=lambda: simple(self.step, value=float(self.step)),
            on_failure=self.failures.append,
        )

    def after(self, step, end=None):
        self.step = step
        self.hook.after_step(None, end)
        self.hook.wait()


def test_full_disk_does_not_end_the_run(tmp_path, monkeypatch):
    saving = Saving(tmp_path)
    saving.after(1)
    before = content(tmp_path)
    write_all, num_bytes = saved._write_all, 0

    def write_until_full(file, block):
        nonlocal num_bytes
        num_bytes += len(block)
        if num_bytes > 100:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_all(file, block)

    with monkeypatch.context() as full:
        full.setattr(saved, "_write_all", write_until_full)
        saving.after(2)
        saving.after(3)
    assert content(tmp_path) == before
    assert len(saving.failures) == 1
    assert "the disk is full" in saving.failures[0]
    assert saving.hook.saved == 1
    assert saving.hook.failure is not None
    saving.after(4)
    assert (saving.hook.saved, saving.hook.failure) == (4, None)
    assert step_of(tmp_path) == 4


def test_old_ones_make_room_only_if_the_disk_is_short_of_it(tmp_path, monkeypatch):
    for step in (1, 2, 3):
        save(tmp_path, simple(step), keep=2, keep_step=1)
    usage = shutil.disk_usage(tmp_path)
    free = 2 * checkpoint._ROOM_FOR_ROWS
    removed = []
    rmtree = shutil.rmtree

    def recorded(path, **options):
        if Path(path).exists():
            removed.append(Path(path).name)
        rmtree(path, **options)

    monkeypatch.setattr(checkpoint.shutil, "rmtree", recorded)
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda path: usage._replace(free=free))
    save(tmp_path, simple(4), keep=2, keep_step=1)
    assert removed == ["step-00000002"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000003", "step-00000004"]
    free = 10
    with pytest.raises(StoreError, match="the disk is full: a checkpoint takes"):
        save(tmp_path, simple(5), keep=2, keep_step=1)
    # The newest one and the best one are never given up.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000004"]


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    saving, release = Saving(tmp_path), threading.Event()
    write_all = saved._write_all

    def slow(file, block):
        assert release.wait(60)
        write_all(file, block)

    monkeypatch.setattr(saved, "_write_all", slow)
    saving.step = 1
    saving.hook.after_step(None, None)
    assert (saving.hook.saved, step_of(tmp_path)) == (-1, None)
    release.set()
    saving.hook.wait()
    assert (saving.hook.saved, step_of(tmp_path)) == (1, 1)
