"""A learner over ranks gives what one process gives."""

import functools
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager

import forked
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from batches import VERSION, random_batch
from learners import make_learner, recipe_of
from rank_checks import num_local, work
from ray_processes import listening
from safetensors.torch import save_file
from tiny_models import tiny_model

from scalerl.errors import LearnerError, RankLost
from scalerl.recipe.parts import LearnerSettings
from scalerl.training.learner.ranks import driver
from scalerl.training.learner.ranks.rank import LearnerRank, RankSpec
from scalerl.training.learner.saved import SavedTensors, file_name
from scalerl.training.remote import peer
from scalerl.training.run.learners import learner_settings


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("device", "size", "num_checks"),
    [
        pytest.param("cpu", 2, 27, marks=pytest.mark.slow),
        pytest.param("cuda", 2, 4, marks=pytest.mark.gpu),
    ],
)
def test_ranks_give_the_gradients_of_one_process(tmp_path, monkeypatch, device, size, num_checks):
    """Replicated and sharded; float64 to 1e-12, FP32 to 1e-6; see rank_checks for the cases.

    On a GPU the two ranks share it, over gloo, and FP32 is equal to 1e-5.
    """
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    context = multiprocessing.get_context("spawn")
    failures = context.Queue()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # pyright: ignore[reportPrivateImportUsage]
    arguments = [(rank, size, store.port, str(tmp_path), failures, device) for rank in range(size)]
    ranks = [context.Process(target=work, args=each) for each in arguments]
    for rank in ranks:
        rank.start()
    reported = []
    try:
        while sum(name == "end" for _, name, _ in reported) < size:
            reported.append(failures.get(timeout=1000))
    finally:
        for rank in ranks:
            rank.join(100)
            rank.kill()
    assert [each for each in reported if each[1] != "end"] == []
    assert {text for _, _, text in reported} == {str(num_checks)}, "the number of checks"


def test_ranks_train_save_and_end_together(tmp_path, monkeypatch):
    """Two processes: a step, weights, a checkpoint that one process reads, and the death of a rank."""
    batches = [random_batch(seed, num_groups=6, version=VERSION + seed) for seed in range(2)]
    alone, other = make_learner(), make_learner(seed=1)

    def check_weights(ours):
        assert list(ours) == list(alone.weights())
        for name, weight in alone.weights().items():
            torch.testing.assert_close(ours[name], weight, rtol=0, atol=1e-6)

    with forked_ranks(monkeypatch) as (ranked, ranks):
        assert not listening({os.getpid()}), "ranks of one machine need no port of this process"
        expected, row = alone.step(batches[0]), ranked.step(batches[0])
        assert row["loss/value"] == pytest.approx(expected["loss/value"], abs=1e-6)
        held = ranked.call(num_local)
        assert sum(held) == sum(p.numel() for p in alone.policy.parameters.values())
        assert max(held) < 0.6 * sum(held)

        saved = ranked.state_dict()
        ranked.step(batches[1])
        # The state is that of the moment it was asked for.
        saved.write(tmp_path)
        names = sorted(path.name for path in tmp_path.iterdir())
        assert [name for name in names if "weights" in name] == [
            f"tensors.weights.{rank:05d}-of-00002.safetensors" for rank in range(2)
        ]
        assert all(name.startswith("tensors.") for name in names)
        other.load_state_dict(SavedTensors(tmp_path))
        assert (ranked.version, other.version) == (VERSION + 2, VERSION + 1)
        check_weights(other.weights())
        alone.step(batches[1])
        other.step(batches[1])
        check_weights(ranked.weights())
        check_weights(other.weights())

        os.kill(ranks[1].link.pid, signal.SIGKILL)
        with pytest.raises(LearnerError, match="rank 1 of the learner was ended by SIGKILL"):
            ranked.step(random_batch(3, version=VERSION + 2))
    with pytest.raises(LearnerError, match="closed"):
        ranked.weights()


@pytest.mark.parametrize("family", ["smollm", "qwen3"])
def test_sharded_rank_uses_what_it_loaded(tmp_path, monkeypatch, family):
    """One rank in this process: weights and the next step are those of the checkpoint, with and without a tied head."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    alone = make_learner(family=family)
    alone.step(random_batch(0, num_groups=6, version=VERSION))
    (tmp_path / "state").mkdir()
    for kind, tensors in alone.state_dict().items():
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "state" / file_name(kind))
    tiny_model(family, seed=0, dtype=torch.float32).save_pretrained(tmp_path / "model")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # pyright: ignore[reportPrivateImportUsage]
    spec = RankSpec(
        learner=LearnerSettings(sharding="full"),
        address="127.0.0.1",
        meeting=f"127.0.0.1:{store.port}",
        model=str(tmp_path / "model"),
        settings=functools.partial(learner_settings, recipe_of(), gpu=False),
    )
    rank = LearnerRank(spec, 0)
    try:
        assert rank.load(str(tmp_path / "state")) == VERSION + 1
        for name, weight in rank.named_weights():
            torch.testing.assert_close(weight, alone.weights()[name], rtol=0, atol=0, msg=name)
        batch = random_batch(1, num_groups=6, version=VERSION + 1)
        assert rank.step(batch)["loss/value"] == pytest.approx(alone.step(batch)["loss/value"], abs=1e-6)
    finally:
        rank.close()


@contextmanager
def forked_ranks(monkeypatch, *overrides, seed=0):
    """Two ranks that start quickly, as a learner and as its processes; nothing is left of them."""
    forked.children(monkeypatch)
    learner = make_learner("learner.sharding=full", "learner.ranks=2", *overrides, seed=seed)
    ranks = list(learner.ranks)
    pids = [rank.link.pid for rank in ranks]
    try:
        yield learner, ranks
    finally:
        learner.close()
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}") and not is_zombie(pid)]


def answer_of(rank, seconds=300.0):
    end = time.monotonic() + seconds
    while (message := rank.receive()) is None:
        assert time.monotonic() < end, "no answer"
        time.sleep(0.01)
    return message


def test_failure_of_one_rank_is_the_reason(monkeypatch):
    """Not that of rank 0, which waits for it and would fail without it."""
    with forked_ranks(monkeypatch) as (learner, ranks):
        ranks[1].send(spoil)
        assert answer_of(ranks[1]) == ("done", None)
        with pytest.raises(LearnerError, match="rank 1 of the learner failed: ZeroDivisionError: spoilt"):
            learner.weights()


def spoil(rank):
    def fail(*arguments):
        time.sleep(0.5)
        raise ZeroDivisionError("spoilt")

    rank.named_weights = fail


def test_rank_that_cannot_start_leaves_no_other(monkeypatch):
    links = []

    class Link(driver.ChildLink):
        def __init__(self, *arguments, **settings):
            if links:
                raise OSError("no more processes")
            super().__init__(*arguments, **settings)
            links.append(self)

    forked.children(monkeypatch)
    monkeypatch.setattr(driver, "ChildLink", Link)
    with pytest.raises(OSError, match="no more processes"):
        make_learner("learner.sharding=full", "learner.ranks=2")
    assert is_zombie(links[0].pid)


@pytest.mark.slow
def test_ranks_on_busy_cores_give_signs_of_life(monkeypatch):
    """Eight processes a core that never wait, and a limit of 5 s whether or not a rank is stopped."""
    monkeypatch.setattr(peer, "MAX_SILENCE_RUNNING_S", 0.0)
    with forked_ranks(monkeypatch, "learner.silent_s=5") as (learner, _), ExitStack() as opened:
        for _ in range(8 * (os.cpu_count() or 1)):
            busy = opened.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            opened.callback(busy.kill)
        step_for(learner, 15.0)
        assert learner.version > 0


def step_for(learner, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        learner.step(random_batch(1, num_groups=16, version=learner.version))


def test_processes_that_take_too_long_to_start_are_ended():
    with pytest.raises(RankLost, match=r"rank 0 of the learner is not ready after 0.3 s \(learner.start_s\)"):
        # They import torch for longer than that.
        make_learner("learner.sharding=full", "learner.ranks=2", "learner.start_s=0.3")


DRIVER = """
import time
from batches import random_batch
from learners import make_learner

if __name__ == "__main__":
    learner = make_learner("learner.sharding=replicate", "learner.ranks=2")
    print(*(rank.link.pid for rank in learner.ranks), flush=True)
    while True:
        learner.step(random_batch(1, version=learner.version))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ranks_end_when_their_driver_is_killed(tmp_path):
    """In the middle of a step, where ranks wait for each other and not for the driver."""
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    support = os.path.join(os.path.dirname(__file__), "..", "support")
    path = os.pathsep.join([support, *sys.path])
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    ) as driver:
        assert driver.stdout is not None
        pids = [int(word) for word in driver.stdout.readline().split()]
        assert len(pids) == 2
        driver.kill()
    deadline = time.monotonic() + 300
    while alive := [pid for pid in pids if os.path.exists(f"/proc/{pid}") and not is_zombie(pid)]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.2)


def is_zombie(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
