"""Runs on real Ray, on one node and several: what the loss of a node leads to, and of ranks that are not ready.

Each test starts a cluster, so few. Lost processes are in ../test_kills.py."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from needs import needs_package
from other_user import needs_another_user, run_as_another
from ray_processes import alive, generators_of, parent_of, ranks_of
from ray_runs import PATIENCE_S, check_exactly_once, num_steps, start, stop, wait_for_steps
from small_runs import check_same_steps
from until import wait_until

from scalerl.errors import RankLost
from scalerl.recipe.load import load_recipe
from scalerl.runfolder import store
from scalerl.training.run.run import TrainingRun

pytestmark = [needs_package("ray"), pytest.mark.slow, pytest.mark.timeout(1800)]

RANKS = {"learner__ranks": 2, "learner__sharding": "full"}
# Without a lag a run does not depend on timing.
EXACT = {
    "task__num_problems": 96,
    "pipeline__max_lag": 0,
    "rollout__slots": 16,
    "evaluation__num_prompts": 6,
    "checkpoint__every": 2,
    "curriculum": "uniform",
    "optimizer__warmup_steps": 0,
}


def test_rank_without_a_model_is_lost_in_time(tmp_path, monkeypatch):
    """One is stopped before it looks for the model; another waits for a hub that does not answer."""
    from scalerl.training.run.cluster.connect import connect
    from scalerl.training.run.cluster.ranks import placed_ranks, ray_learner

    words = ("learner.ranks=2", "learner.sharding=full", "learner.silent_s=2")

    def learner_of(placed: Any, model: str, start_s: float) -> None:
        learner = load_recipe("tiny-cpu", [*words, f"learner.start_s={start_s}"]).learner
        ray_learner(placed, learner, model=model, settings=dict, seed=0)

    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with ExitStack() as opened:
        hub = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{hub.getsockname()[1]}")
        connection = connect("local")
        opened.callback(connection.close)
        with placed_ranks(connection, 2, on_gpu=False, cpus=0.5) as placed:
            victim = placed.places[1].pid
            os.kill(victim, signal.SIGSTOP)
            with pytest.raises(RankLost, match=rf"rank 1 .* process {victim} .* for 2 s: it was stopped"):
                learner_of(placed, "tiny-base", 3600.0)
            wait_until(lambda: not alive({victim}), PATIENCE_S, "the end of the stopped process")
        with placed_ranks(connection, 2, on_gpu=False, cpus=0.5) as placed:
            processes = {place.pid for place in placed.places}
            sentence = r"rank 0 .* is not ready after 5 s \(learner.start_s\)"
            with pytest.raises(RankLost, match=sentence):
                learner_of(placed, "owner/name", 5.0)
            wait_until(lambda: not alive(processes), PATIENCE_S, "the end of the ranks")


# Prints how many nodes Ray lists for the token in any file or environment that this user can read, or for none.
ASK_RAY = """
import glob
tokens = ["", *sys.argv[3:]]
for path in [sys.argv[2] + "/.ray/auth_token", *glob.glob("/proc/[0-9]*/environ")]:
    try:
        words = open(path).read().split(chr(0))
    except OSError:
        continue
    is_file = path.endswith("auth_token")
    tokens += [word.removeprefix("RAY_AUTH_TOKEN=") for word in words if is_file or "RAY_AUTH_TOKEN=" in word]
for token in tokens:
    os.environ.update({"RAY_AUTH_TOKEN": token, "RAY_AUTH_MODE": "token"} if token else {"RAY_AUTH_MODE": "disabled"})
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
    try:
        print(len(GcsClient(address=sys.argv[1]).get_all_node_info(timeout=20)))
    except Exception as error:
        print(type(error).__name__)
"""


@needs_another_user
def test_other_users_cannot_ask_a_local_ray(monkeypatch):
    from scalerl.training.run.cluster.connect import connect

    imports = "ray\nfrom ray._raylet import AuthenticationTokenLoader, Config, GcsClient"
    with tempfile.TemporaryDirectory() as home, ExitStack() as opened:
        # As on most machines, everybody may read what is written to the home folder.
        os.chmod(home, 0o755)
        monkeypatch.setenv("HOME", home)
        opened.callback(os.umask, os.umask(0o022))
        connection = connect("local")
        opened.callback(connection.close)
        import ray

        address = ray.get_runtime_context().gcs_address
        attacked = run_as_another(ASK_RAY, address, home, imports=imports)
        assert (attacked.returncode, attacked.stdout) == (0, "AuthenticationError\n"), attacked.stderr
        with_token = run_as_another(ASK_RAY, address, home, os.environ["RAY_AUTH_TOKEN"], imports=imports)
        assert with_token.stdout.splitlines()[1] == "1", "the question is one that Ray answers"
    assert "RAY_AUTH_TOKEN" not in os.environ


# Prints what Ray answers to each of these tokens; "" is none at all.
KNOCK = """
import os, sys
from ray._raylet import AuthenticationTokenLoader, Config, GcsClient
for token in sys.argv[2:]:
    os.environ.update({"RAY_AUTH_TOKEN": token, "RAY_AUTH_MODE": "token"} if token else {"RAY_AUTH_MODE": "disabled"})
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
    try:
        print(len(GcsClient(address=sys.argv[1]).get_all_node_info(timeout=20)))
    except Exception as error:
        print(type(error).__name__)
"""


REFUSED = (*["AuthenticationError"] * 4, "RpcError", "AuthenticationError")


def test_local_ray_answers_to_the_token_of_its_own_run_only():
    """No token, a wrong one, part of it, and that of an earlier run; then ten megabytes that are no message."""
    from scalerl.training.run.cluster.connect import connect

    connect("local").close()
    earlier = connect("local")
    replayed = os.environ["RAY_AUTH_TOKEN"]
    earlier.close()
    connection = connect("local")
    try:
        import ray

        own = os.environ["RAY_AUTH_TOKEN"]
        address = ray.get_runtime_context().gcs_address
        tokens = ["", "0" * 64, own[:-1], own + "0", "x" * 100_000, replayed, own]
        asked = subprocess.run(
            [sys.executable, "-c", KNOCK, address, *tokens], capture_output=True, text=True, timeout=600
        )
        assert asked.stdout.split() == [*REFUSED, "1"], asked.stderr
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=60) as stranger, suppress(OSError):
            for _ in range(160):
                stranger.sendall(b"\xff" * 65536)
        assert len(ray.nodes()) == 1
        assert ray.get(ray.put(bytes(50_000_000))) == bytes(50_000_000)
    finally:
        connection.close()


def test_killed_driver_leaves_no_rank_on_a_cluster(tmp_path):
    """Ray goes on and must end the actors itself; one of the ranks is stopped, and obeys nothing."""
    from ray.cluster_utils import Cluster

    folder, driver, victim = tmp_path / "run", None, 0
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": 200 * 2**20})
    try:
        driver = start(folder, **RANKS, cluster__address=cluster.address)
        wait_for_steps(folder, 2, driver)
        victim = ranks_of(os.getpid())[0]
        os.kill(victim, signal.SIGSTOP)
        driver.kill()
        driver.communicate()
        own = os.getpid()
        wait_until(lambda: not [*ranks_of(own), *generators_of(own)], PATIENCE_S, "the end of the actors")
        wait_until(lambda: not alive({victim}), PATIENCE_S, "the end of the stopped rank")
    finally:
        if driver is not None:
            driver.kill()
        if victim and alive({victim}):
            os.kill(victim, signal.SIGKILL)
        cluster.shutdown()


def test_ranks_on_two_nodes_and_the_loss_of_one(tmp_path):
    """Nodes of one core each, so that every rank and the generator is on another."""
    from ray.cluster_utils import Cluster

    reference, folder, driver = tmp_path / "one", tmp_path / "run", None
    batch = {"pipeline__groups_per_batch": 4, "pipeline__completions_per_group": 4, "evaluation__every": 1000}
    words = [f"{key.replace('__', '.')}={value}" for key, value in (EXACT | batch | {"budget__steps": 12}).items()]
    TrainingRun(load_recipe("tiny-cpu", words), reference).train()
    small: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 200 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args=small)
    try:
        added = [cluster.add_node(**small) for _ in range(2)]
        nodes = {node.all_processes["raylet"][0].process.pid: node for node in added}
        cluster.wait_for_nodes()
        on_cluster = EXACT | {"cluster__address": cluster.address, "rollout__generators": 1}
        driver = start(folder, **RANKS, **on_cluster)
        wait_for_steps(folder, 6, driver)
        check_same_steps(folder, reference, 6)
        before, row = store.read_metrics(folder)[-2:]
        hours, seconds = (row[key] - before[key] for key in ("gpu_hours", "time/training_s"))
        # Two processes on other nodes hold a core each; of the driver's own CPU time counts.
        assert 2 <= hours * 3600 / seconds < 4

        ranks = ranks_of(os.getpid())
        assert len({parent_of(rank) for rank in ranks}) == 2, "each rank is on another node"
        elsewhere = next(parent_of(rank) for rank in ranks if parent_of(rank) in nodes)
        cluster.remove_node(nodes[elsewhere], allow_graceful=False)
        output, _ = driver.communicate(timeout=PATIENCE_S)
        assert driver.returncode == 1, output
        status = store.read_status(folder) or {}
        assert status["status"] == "failed"
        assert re.fullmatch(r".*lost with its node.*--resume.*", status["reason"])
        wait_until(lambda: not ranks_of(os.getpid()), PATIENCE_S, "the end of the ranks")

        one_rank = {"learner__ranks": 1, "learner__sharding": "full"}
        driver = start(folder, resume=True, **one_rank, **on_cluster, budget__steps=12)
        output, _ = driver.communicate(timeout=PATIENCE_S)
        assert driver.returncode == 0, output
        check_same_steps(folder, reference, 12)
    finally:
        if driver is not None:
            driver.kill()
        cluster.shutdown()


def test_lost_node_costs_nothing_and_another_takes_its_place(tmp_path, monkeypatch):
    """A node that is removed loses no group and is no fault; one that is added takes requests within a minute."""
    from ray.cluster_utils import Cluster

    # Ray's workers would let every other process of the machine go first.
    monkeypatch.setenv("RAY_worker_niceness", "0")
    store_bytes = 200 * 2**20
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": store_bytes})
    folder, driver = tmp_path / "run", None

    def ready() -> int:
        assert driver is not None
        assert driver.poll() is None, store.read_status(folder)
        return store.read_metrics(folder)[-1]["generators/ready"]

    try:
        second = cluster.add_node(num_cpus=1, object_store_memory=store_bytes)
        cluster.wait_for_nodes()
        # Ray may place the replacement on the lost node, which it notices late: that loss counts.
        driver = start(folder, cluster__address=cluster.address, rollout__max_replacements=1)
        wait_for_steps(folder, 4, driver)
        assert ready() == 2
        cluster.remove_node(second, allow_graceful=False)
        wait_until(lambda: ready() == 1, PATIENCE_S, "the loss of the node")
        wait_for_steps(folder, num_steps(folder) + 6, driver)
        added = time.monotonic()
        cluster.add_node(num_cpus=1, object_store_memory=store_bytes)
        wait_until(lambda: ready() == 2, PATIENCE_S, "the second generator")
        print(f"a generator was ready {time.monotonic() - added:.0f} s after its node was added")
        wait_for_steps(folder, num_steps(folder) + 4, driver)
        stop(driver)
    finally:
        if driver is not None:
            driver.kill()
        cluster.shutdown()
    check_exactly_once(folder)
    losses = [loss for row in store.read_metrics(folder) for loss in row.get("lost", ())]
    assert losses[0]["reason"] == "was lost with its node"
    assert losses[0]["requests"] > 0, "it had taken some"
    assert len(losses) <= 2
