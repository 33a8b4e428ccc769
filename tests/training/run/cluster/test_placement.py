"""Where ranks are placed and how they are numbered, without Ray; what a cluster has too little of."""

import os
import socket
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest

from scalerl.errors import ClusterError, ModelError, RecipeError
from scalerl.recipe.load import load_recipe
from scalerl.recipe.parts import LearnerSettings
from scalerl.training.learner.ranks.driver import ClusterMeeting, LocalMeeting
from scalerl.training.learner.ranks.rank import LearnerRank, RankSpec
from scalerl.training.models.load import model_folder, name_elsewhere
from scalerl.training.remote.actors import ActorPlace, RemoteActor, interface_of, reason_of, variables_of
from scalerl.training.run.cluster.connect import Connection, Node
from scalerl.training.run.cluster.place import place_on
from scalerl.training.run.cluster.ranks import PlacedRanks, not_free, ordered


def place(node: str, *gpus: int | str, **more: Any) -> ActorPlace:
    return ActorPlace(node=node, address=f"10.0.0.{ord(node)}", pid=1, gpus=tuple(map(str, gpus)), **more)


def test_ranks_are_numbered_by_node_with_the_drivers_first():
    places = [place("b", 10), place("c", 0), place("a", 1), place("b", 9), place("a", 0)]
    order = [places[index] for index in ordered(places, first="b")]
    assert [(each.node, *each.gpus) for each in order] == [("b", "9"), ("b", "10"), ("a", "0"), ("a", "1"), ("c", "0")]
    parts = [place("a", "MIG-2c1", free_bytes=79e9), place("a", "MIG-1f0", free_bytes=78e9)]
    assert ordered(parts, first="a") == [1, 0]
    placed = PlacedRanks(actors=[], places=parts, address="")
    assert placed.free_bytes == 78e9, "that of the fullest"


def test_replicas_of_hybrid_sharding_are_within_nodes():
    """64 ranks on 8 nodes, in any order: eight in a row share a node."""
    places = [place(chr(ord("a") + number % 8), number // 8) for number in range(64)]
    order = [places[index].node for index in ordered(places, first="d")]
    assert all(len(set(order[start : start + 8])) == 1 for start in range(0, 64, 8))
    assert order[0] == "d"


# What a cluster has too little of -------------------------------------------------------------------------------------


def connection(*nodes: tuple[float, float]) -> Connection:
    """A cluster with nodes of so many cores and GPUs."""
    return Connection(address="head:1", nodes=tuple(Node(*sizes) for sizes in nodes), close=lambda: None)


def ranked(*more: str) -> Any:
    return load_recipe("scalerl", ["cluster.address=auto", "learner.ranks=4", "learner.sharding=full", *more])


SAMPLERS = "rollout.generators=5"


@pytest.mark.parametrize(
    "nodes, settings, error, message",
    [
        ([(64, 8)], [SAMPLERS], ClusterError, "rollout.generators = 5 needs 9 GPUs, but the cluster at head:1 has 8:"),
        ([(64, 0)], [SAMPLERS, "rollout.gpus_per_generator=1"], RecipeError, "the cluster at head:1 has no GPU"),
        ([(0, 0)], [SAMPLERS], ClusterError, "has no CPUs"),
    ],
)
def test_too_small_cluster_is_refused(nodes, settings, error, message):
    recipe = ranked(*settings)
    with ExitStack() as opened, pytest.raises(error, match=message):
        place_on(connection(*nodes), recipe.learner, recipe.rollout, opened)


@pytest.mark.parametrize(
    "nodes, settings, cpus",
    [
        # Whoever has a GPU needs no core.
        ([(64, 0), (4, 12)], ["rollout.generators=8"], 0.0),
        ([(64, 0), (4, 12)], ["rollout.generators=8", "rollout.gpus_per_generator=0"], 1.0),
        ([(2, 0)], ["rollout.generators=2", "learner.ranks=1", "learner.sharding=none"], 0.5),
        ([(2, 0), (1, 0)], ["rollout.generators=3"], 1 / 3),
    ],
)
def test_cores_are_shared(monkeypatch, nodes, settings, cpus):
    given = {}

    def placed(*_: Any, **asked: Any) -> Any:
        given.update(asked)
        ranks = PlacedRanks(actors=[None], places=[place("a", free_bytes=1.0)], address="here")
        return nullcontext(ranks)

    pytest.importorskip("ray")
    monkeypatch.setattr("scalerl.training.run.cluster.ranks.placed_ranks", placed)
    recipe = ranked(*settings)
    with ExitStack() as opened:
        assert place_on(connection(*nodes), recipe.learner, recipe.rollout, opened).cpus_per_generator == cpus
    assert given["is_here"] == ("learner.sharding=none" in settings)


def test_devices_that_are_not_free_are_counted_in_cores(monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "available_resources", lambda: {"CPU": 1.5})
    expected = (
        "learner.ranks = 4 needs 2 free CPUs, and the cluster at head:1 has 1.5: wait until others are done, or lower "
        "learner.ranks"
    )
    assert not_free(connection((64, 0)), 4, 0.5, on_gpu=False).startswith(expected)
    assert "needs 4 free GPUs" in not_free(connection((64, 8)), 4, 1.0, on_gpu=True)


# Why a rank cannot start ----------------------------------------------------------------------------------------------


def test_reason_is_one_line_of_rays_error():
    exceptions = pytest.importorskip("ray.exceptions")
    text = (
        "\x1b[36mray::LearnerRank.__init__()\x1b[39m (pid=7)\n  File x\nModuleNotFoundError: No module named 'torch'\n"
    )
    failed, died = exceptions.RayTaskError("f", text, ModuleNotFoundError("torch")), exceptions.ActorDiedError()
    missing = "ModuleNotFoundError: No module named 'torch'"
    assert reason_of(failed) == reason_of(exceptions.ActorDiedError(failed)) == missing
    assert reason_of(died) == str(died).splitlines()[0] != ""
    assert reason_of(exceptions.RayError("\x1b[31mno environment\x1b[0m\n\tdetails")) == "no environment"
    assert reason_of(exceptions.RayError()) == "RayError"


# The actor, in this process -------------------------------------------------------------------------------------------


def test_commands_that_overtook_others_wait_for_them():
    actor = RemoteActor()
    for number in (1, 2, 0):
        actor.give(number, (f"command {number}", ()))
    assert [actor.receive(True) for _ in range(3)] == [(f"command {number}", ()) for number in range(3)]
    assert actor.receive(False) is None


def test_take_returns_all_messages_once_with_a_sign_of_life():
    actor = RemoteActor()
    assert actor.take(0.01) == [("beat", 0.0)]
    actor.send("ready", 1)
    actor.send("done", 2)
    assert actor.take(60.0) == [("beat", 0.0), ("ready", 1), ("done", 2)]
    assert actor.take(0.0) == [("beat", 0.0)]


def test_interface_is_found_by_its_address():
    assert interface_of("127.0.0.1") in {name for _, name in socket.if_nameindex()}
    assert interface_of("203.0.113.77") is None


def test_ranks_of_one_machine_talk_over_its_loopback_interface():
    there = ActorPlace(node="a", address="203.0.113.77", pid=1)
    assert set(variables_of(there, is_only_node=True).values()) == {"lo"}
    assert variables_of(there, is_only_node=False) == {}


# The model on another node --------------------------------------------------------------------------------------------


def test_model_is_named_for_another_working_folder(tmp_path: Path, monkeypatch):
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    assert name_elsewhere("model") == name_elsewhere("./model") == str(tmp_path.resolve() / "model")
    (tmp_path / "link").symlink_to("model")
    assert name_elsewhere("link") == str(tmp_path.resolve() / "link"), "it may lead elsewhere on another node"
    assert name_elsewhere("tiny-base") == "tiny-base"
    assert name_elsewhere("owner/name") == "owner/name"


@pytest.mark.parametrize("make", [LocalMeeting, lambda: ClusterMeeting("127.0.0.1")], ids=["local", "cluster"])
def test_rank_names_itself_if_it_has_no_model(make):
    meeting, model = make(), os.path.join(os.sep, "no", "such", "model")
    learner = LearnerSettings(sharding="full")
    spec = RankSpec(learner=learner, address="127.0.0.1", meeting=meeting.name, model=model, settings=dict)
    with pytest.raises(ModelError, match=rf"rank 0 of the learner, on {socket.gethostname()}: .*does not exist"):
        LearnerRank(spec, 0)
    meeting.close()


def test_model_folder_is_that_of_this_machine():
    assert (model_folder("tiny-base") / "model.safetensors").is_file()
    with pytest.raises(ModelError, match="does not exist"):
        model_folder(os.path.join(os.sep, "no", "such", "model"))
