"""Runs with generators beside the learner, in child processes, and what cannot be asked for."""

import os
import signal
import socket
import tempfile
import threading
import time
from contextlib import ExitStack, nullcontext
from pathlib import Path

import forked
import pytest
import torch
from small_runs import small

from scalerl.errors import ClusterError, RecipeError
from scalerl.processes import session_members
from scalerl.recipe.load import load_recipe
from scalerl.recipe.recipe import Recipe
from scalerl.runfolder import store
from scalerl.training.remote.child import ChildLink
from scalerl.training.run.cluster import connect as connect_module
from scalerl.training.run.cluster import generators
from scalerl.training.run.cluster.connect import check_address, connect
from scalerl.training.run.cluster.place import Place, enter_cluster
from scalerl.training.run.run import TrainingRun

TIMES = ("time/", "gpu_hours", "generators/", "lost", "host/")


def train(folder: Path, *more: str, resume: bool = False) -> list[store.Row]:
    TrainingRun(small("budget.steps=3", *more), folder, resume=resume).train()
    return store.read_metrics(folder)


def test_synchronous_generators_equal_one_process_despite_a_kill(tmp_path, monkeypatch):
    """The rows say that one was lost; no group is lost or trained twice, and no process is left."""
    forked.children(monkeypatch)
    started: list[ChildLink] = []

    class Link(ChildLink):
        def __init__(self, *arguments, **settings):
            super().__init__(*arguments, **settings)
            started.append(self)

    monkeypatch.setattr(generators, "ChildLink", Link)
    alone = train(tmp_path / "alone", "pipeline.max_lag=0")
    run = TrainingRun(small("budget.steps=3", "pipeline.max_lag=0", "rollout.generators=2"), tmp_path / "fleet")
    os.kill(started[0].pid, signal.SIGKILL)
    run.train()
    fleet = store.read_metrics(tmp_path / "fleet")
    for expected, row in zip(alone, fleet, strict=True):
        kept = {key for key in row if not key.startswith(TIMES)}
        assert kept == {key for key in expected if not key.startswith(TIMES)}
        for key in kept:
            assert row[key] == (expected[key] if key in ("groups", "step") else pytest.approx(expected[key], abs=1e-5))
    evals = [[row["num_correct"] for row in store.read_evals(tmp_path / name)] for name in ("alone", "fleet")]
    assert evals[0] == evals[1]
    assert (fleet[-1]["generators/ready"], fleet[-1]["generators/slots"]) == (2, 8)
    assert sum(row["generators/chunks"] for row in fleet) > 0
    assert [loss["kind"] for row in fleet for loss in row.get("lost", ())] == ["died"]
    assert sum(row["generators/lost"] for row in fleet) == 1
    assert not [link for link in started if session_members(link.pid)]


def test_lagging_run_trains_every_group_once_and_resumes(tmp_path, monkeypatch):
    forked.children(monkeypatch)
    train(tmp_path / "run", "pipeline.max_lag=2", "rollout.generators=2", "budget.steps=2")
    # The number of generators may change.
    rows = train(tmp_path / "run", "pipeline.max_lag=2", "rollout.generators=1", resume=True)
    groups = [key for row in rows for key in row["groups"]]
    assert len(groups) == len(set(groups)) == 12
    assert max(row["rollout/lag_max"] for row in rows) <= 2
    assert [row["attempt"] for row in rows] == [1, 1, 2]


VLLM, TWO = "rollout.engine=vllm", "rollout.vllm.tensor_parallel=2"


@pytest.mark.parametrize(
    ("name", "settings", "gpus", "num_devices", "asks"),
    [
        ("tiny-cpu", ["rollout.generators=2"], [[1], [2]], 3, "rollout.generators = 2"),
        ("tiny-cpu", ["rollout.generators=1", VLLM, TWO], [[1, 2]], 3, "rollout.generators = 1"),
        ("tiny-cpu", [VLLM, TWO], [[0, 1]], 2, "rollout.vllm.tensor_parallel = 2"),
        ("tiny-cpu", [VLLM, "rollout.vllm.devices=[2]"], [[2]], 2, r"rollout.vllm.devices = \[2\]"),
        ("tiny-cpu", ["rollout.generators=2", "rollout.gpus_per_generator=0"], [[], []], 1, ""),
        ("scalerl-8b-node", [], [[3], [4], [5], [6], [7]], 8, "rollout.generators = 5"),
    ],
)
def test_generators_get_gpus_that_the_learner_does_not_use(monkeypatch, name, settings, gpus, num_devices, asks):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (80e9, 80e9))
    recipe = load_recipe(name, settings)
    rollout, ranks = recipe.rollout, recipe.learner.ranks
    placed = generators.gpus_of_generators(rollout, rollout.generator_gpus, first=ranks)
    assert [list(each) for each in placed] == gpus
    with ExitStack() as opened:
        # Every GPU is paid for, and one that both use once.
        assert enter(recipe, opened).num_devices == num_devices
        monkeypatch.setattr(torch.cuda, "device_count", lambda: num_devices - 1 or 1)
        message = rf"with {asks} needs {num_devices} GPUs, but"
        with nullcontext() if num_devices == 1 else pytest.raises(ClusterError, match=message):
            enter(recipe, opened)


def enter(recipe: Recipe, opened: ExitStack) -> Place:
    return enter_cluster(recipe.cluster.address, recipe.learner, recipe.rollout, opened, print)


def test_cpus_are_one_device_and_have_no_gpus(tmp_path):
    with ExitStack() as opened:
        assert enter(small("rollout.generators=2"), opened).num_devices == 0
    settings = small("rollout.generators=2", "rollout.gpus_per_generator=1")
    with pytest.raises(RecipeError, match=r"gpus_per_generator is 1, but this machine has no GPU"):
        TrainingRun(settings, tmp_path / "run")


# Addresses ------------------------------------------------------------------------------------------------------------


def test_error_of_ray_is_one_sentence(monkeypatch):
    pytest.importorskip("ray")
    check_address("auto")
    other = RuntimeError(
        "Version mismatch: The cluster was started with:\n    Ray: 2.51.1\nThis process:\n    Ray: 2.60\n"
    )
    monkeypatch.setattr(connect_module, "_join", lambda address: other)
    with pytest.raises(ClusterError, match=r"^Ray at auto cannot be used: Version .* Ray: 2.51.1 This .* Ray: 2.60$"):
        connect("auto")


@pytest.mark.parametrize("address", ["somewhere", "http://head", "head:port", ":"])
def test_addresses_are_host_and_port(address):
    with pytest.raises(ClusterError, match="HOST:PORT"):
        check_address(address)


def test_token_that_others_can_read_is_refused(monkeypatch, tmp_path):
    pytest.importorskip("ray")
    with tempfile.TemporaryDirectory() as home:
        path = Path(home, "token")
        path.write_text("0123456789abcdef")
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
        monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
        for mode in (0o604, 0o640):
            path.chmod(mode)
            os.chmod(home, 0o755)
            with pytest.raises(ClusterError, match=f"chmod 600 {path}"):
                check_address("auto")
            check_address("local")  # it has a token of its own
            os.chmod(home, 0o700)
            check_address("auto")
        os.chmod(home, 0o755)
        path.chmod(0o600)
        check_address("auto")


def test_refused_connection_is_one_sentence():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ClusterError, match=f"cluster.address 127.0.0.1:{port} does not answer: connection refused"):
        check_address(f"127.0.0.1:{port}")


def test_missing_ray_names_the_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ClusterError, match=r'pip install "scalerl\[cluster\]"'):
        check_address("local")


def test_other_server_is_given_up_in_time(monkeypatch):
    """Something listens and never answers as Ray does."""
    pytest.importorskip("ray")
    monkeypatch.setattr(connect_module, "ANSWER_S", 2.0)
    monkeypatch.setattr(connect_module, "_join", lambda address: threading.Event().wait(600))
    with socket.create_server(("127.0.0.1", 0)) as server:
        begun = time.monotonic()
        with pytest.raises(ClusterError, match="does not answer as a Ray cluster within 2 s"):
            connect(f"127.0.0.1:{server.getsockname()[1]}")
    assert time.monotonic() - begun < 300
