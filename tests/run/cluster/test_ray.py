"""Runs on real Ray: generators killed and stopped, a server killed, a node lost. Each test starts a cluster, so few.

Kills of drivers are in ../test_kills.py."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
from ray_processes import (
    LOOPBACK,
    alive,
    command_line,
    descendants,
    generators_of,
    listening,
    shared_memory,
    wait_until,
)
from ray_runs import PATIENCE_S, check_exactly_once, kinds_of_loss, num_steps, start, stop, wait_for_steps

from scalerl import store

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

NUM_KILLS = 10


def test_killed_and_stopped_generators_cost_nothing(tmp_path):
    folder, draw = tmp_path / "run", random.Random(0)
    driver = start(folder)
    stopped: list[int] = []
    try:
        wait_for_steps(folder, 3, driver)
        for number in range(NUM_KILLS + 1):
            # The last one is stopped, not killed: no error tells of it.
            kind = signal.SIGSTOP if number == NUM_KILLS else signal.SIGKILL
            victim = draw.choice(wait_until(lambda: generators_of(driver.pid), PATIENCE_S, "a generator"))
            before = num_steps(folder)
            os.kill(victim, kind)
            stopped += [victim] * (kind == signal.SIGSTOP)
            # Several steps: what was finished before the loss makes some without any generator.
            wait_for_steps(folder, before + 5, driver)
            time.sleep(draw.uniform(0.0, 2.0))
        # The other generator goes on; the stopped one is lost once it was silent for long enough.
        wait_until(lambda: "silent" in kinds_of_loss(folder), PATIENCE_S, "the loss of the stopped generator")
        output = stop(driver)
    finally:
        for pid in stopped:
            if alive({pid}):
                os.kill(pid, signal.SIGKILL)
        driver.kill()
    check_exactly_once(folder)
    assert len(kinds_of_loss(folder)) >= NUM_KILLS + 1
    assert "was lost" in output


@pytest.mark.parametrize("server", ["raylet", "gcs_server"])
def test_killed_server_of_ray_ends_the_run_with_the_reason(tmp_path, server):
    folder, memory = tmp_path / "run", shared_memory()
    driver = start(folder, rollout__generators=1)
    wait_for_steps(folder, 2, driver)
    processes = descendants(driver.pid)
    assert listening(processes | {driver.pid}) <= LOOPBACK
    assert listening(processes)
    session = next(word for pid in processes for word in command_line(pid).split() if word.startswith("--session-dir="))
    os.kill(next(pid for pid in processes if f"/{server}" in command_line(pid).split()[0]), signal.SIGKILL)
    begun = time.monotonic()
    output, _ = driver.communicate(timeout=PATIENCE_S)
    print(f"ended {time.monotonic() - begun:.1f} s after SIGKILL of Ray's {server}")
    assert driver.returncode == 1, output
    status = store.read_status(folder)
    assert status is not None
    assert (status["status"], f"Ray's {server} process" in status["reason"]) == ("failed", True)
    assert "--resume" in output
    wait_until(lambda: not alive(processes), PATIENCE_S, "the end of Ray's processes")
    wait_until(lambda: not os.path.exists(session.partition("=")[2]), PATIENCE_S, "the end of the session's folder")
    assert not {name for name in shared_memory() - memory if "plasma" in name or "ray" in name}


def test_lost_node_costs_nothing(tmp_path, monkeypatch):
    from ray.cluster_utils import Cluster

    # Ray's workers would let every other process of the machine go first.
    monkeypatch.setenv("RAY_worker_niceness", "0")
    store_bytes = 200 * 2**20
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": store_bytes})
    folder, driver = tmp_path / "run", None
    try:
        second = cluster.add_node(num_cpus=1, object_store_memory=store_bytes)
        cluster.wait_for_nodes()
        driver = start(folder, cluster__address=cluster.address)
        wait_for_steps(folder, 4, driver)
        devices = store.read_metrics(folder)[-1]["gpu_hours"]
        assert devices > 0
        before = num_steps(folder)
        cluster.remove_node(second, allow_graceful=False)
        wait_for_steps(folder, before + 10, driver)
        stop(driver)
    finally:
        if driver is not None:
            driver.kill()
        cluster.shutdown()
    check_exactly_once(folder)
    assert any(row["generators/lost"] for row in store.read_metrics(folder))


def test_demo_recipe_rises_with_two_generators(tmp_path):
    folder = tmp_path / "run"
    words = ["--set", "rollout.generators=2", "--set", "cluster.address=local"]
    command = [sys.executable, "-m", "scalerl", "train", "tiny-cpu", "--no-plots", "--out", str(folder), *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rewards = [row["reward"] for row in store.read_evals(folder)]
    assert rewards[-1] - rewards[0] >= 0.20
