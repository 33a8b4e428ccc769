"""A fleet over generators: who gets what, and what happens when members die or hang."""

import dataclasses
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from contracts.requests import drain, make_request
from fake_engine import FakeEngine
from fleets import LocalLink, make_fleet
from gated import GatedEngine
from until import wait_until

from scalerl.errors import EngineError, RecipeError
from scalerl.training.remote import peer as peer_module
from scalerl.training.remote.peer import Limits
from scalerl.training.remote.weights import Parcel, WeightsFreed
from scalerl.training.rollout.fleet import fleet as fleet_module
from scalerl.training.rollout.fleet.fleet import Fleet
from scalerl.training.rollout.fleet.generator import Generator
from scalerl.training.rollout.fleet.messages import Report


@pytest.fixture
def gated():
    """Return a function that makes a fleet of gated engines, and the engines made so far, by member."""
    made: dict[int, list[GatedEngine]] = {}
    fleets = []

    def make(num_members: int, **settings):
        def engine(number: int) -> GatedEngine:
            made.setdefault(number, []).append(GatedEngine(polls=lambda request: 1, slots=64))
            return made[number][-1]

        # A gated engine is silent until it is allowed to go on: on a busy machine for seconds.
        patient = {"slots": 64, "limits": Limits(silent_s=300.0, stuck_s=300.0)}
        fleet = make_fleet(engine, num_members, **(patient | settings))
        fleets.append(fleet)
        wait_until(lambda: (fleet.poll(), fleet.num_ready == num_members)[1])
        return fleet, made

    yield make
    for engines in made.values():
        for engine in engines:
            engine.break_down()
    for fleet in fleets:
        fleet.close()


def group(number: int, size: int = 2):
    return [dataclasses.replace(make_request(number, seed=100 * number + index), index=index) for index in range(size)]


def keys(requests) -> list[str]:
    return sorted(request.key for request in requests)


def received(engines, num: int) -> set[str]:
    """Wait until an engine was given that many requests, and return their keys."""
    wait_until(lambda: len(engines[-1].submitted) >= num)
    return {request.key for request in engines[-1].submitted}


def test_groups_stay_together_and_go_to_the_least_loaded(gated):
    fleet, made = gated(2)
    fleet.submit([*group(0, 5), *group(1), *group(2), *group(3)])
    first, second = received(made[0], 5), received(made[1], 6)
    assert first == set(keys(group(0, 5)))
    assert second == set(keys([*group(1), *group(2), *group(3)]))
    fleet.submit(group(4))
    made[0][0].allow(1)
    assert set(keys(group(4))) <= received(made[0], 7)


def test_requests_of_a_dead_member_are_given_to_others(gated):
    fleet, made = gated(2)
    requests = [request for number in range(6) for request in group(number)]
    fleet.submit(requests)
    received(made[0], 6)
    made[0][0].break_down()
    wait_until(lambda: fleet.losses or fleet.poll())
    (loss,) = fleet.losses
    assert (loss.number, loss.kind, loss.num_requests) == (0, "died", 6)
    assert "broke down" in loss.reason
    # To the other one, or to the newcomer if that is ready first.
    made[1][0].allow(100)
    wait_until(lambda: len(made[0]) == 2)
    made[0][1].allow(100)
    assert keys(completion.request for completion in drain(fleet)) == keys(requests)
    assert fleet.num_pending == 0


def test_hung_member_is_replaced_and_its_late_answers_ignored(gated):
    # Replacements hang as well until they are allowed to go on: on a busy machine some are lost before that.
    fleet, made = gated(2, limits=Limits(stuck_s=0.1), replacements=10_000)
    requests = [*group(0), *group(1)]
    fleet.submit(requests)
    received(made[0], 2)
    received(made[1], 2)
    # Both hang; replacements take over. Then the old ones wake up.
    completions = []
    wait_until(lambda: (completions.extend(fleet.poll()), len(fleet.losses) >= 2)[1])
    assert {loss.kind for loss in fleet.losses} == {"stuck"}
    for engines in made.values():
        for engine in engines:
            engine.allow(100)

    def all_back() -> bool:
        completions.extend(fleet.poll())
        for engines in made.values():
            engines[-1].allow(100)
        return not fleet.num_pending

    wait_until(all_back)
    for _ in range(5):
        completions.extend(fleet.poll())
    assert keys(completion.request for completion in completions) == keys(requests)


def test_newcomer_starts_with_the_last_weights(gated):
    """And the work of the lost member stays counted."""
    fleet, made = gated(1)
    fleet.push_weights({"a": 1}, 3)
    fleet.push_weights({"a": 2}, 7)
    fleet.submit(group(0))
    received(made[0], 2)
    made[0][0].allow(1)
    assert len(drain(fleet)) == 2
    before = fleet.work
    assert before.decoded == 16
    fleet.submit(group(1))
    made[0][0].break_down()
    wait_until(lambda: (fleet.poll(), len(made[0]) == 2)[1])
    assert fleet.work == before
    made[0][1].allow(100)
    completions = drain(fleet)
    assert {completion.first_version for completion in completions} == {7}
    assert made[0][1].pushed == [7]
    assert fleet.work.decoded == 32


def test_too_many_replacements_end_the_fleet_with_the_reason(gated):
    fleet, made = gated(1, replacements=2)
    fleet.submit(group(0))

    def break_all() -> bool:
        for engine in made[0]:
            engine.break_down()
        fleet.poll()
        return False

    with pytest.raises(EngineError, match=r"broke down, after 2 replacements"):
        wait_until(break_all)
    assert len(made[0]) == 3
    with pytest.raises(EngineError, match="after 2 replacements"):
        fleet.poll()


@pytest.mark.parametrize(
    ("error", "kind", "num_losses"),
    [
        (MemoryError("no room on device 0"), EngineError, 4),
        # A mistake of the user ends the fleet at once, by the sentence itself.
        (RecipeError("no such engine: choose another"), RecipeError, 1),
    ],
)
def test_engine_that_cannot_be_built_ends_the_fleet(request, error, kind, num_losses):
    def make(number: int):
        raise error

    fleet = make_fleet(make, 2, replacements=3)
    request.addfinalizer(fleet.close)
    fleet.submit([make_request(0)])
    with pytest.raises(kind, match=str(error)):
        drain(fleet)
    assert len(fleet.losses) == num_losses
    with pytest.raises(EngineError, match=str(error)):
        fleet.poll()


class Silent:
    """A link to a generator that says what it is given and then falls silent, as a process under SIGSTOP does."""

    where, pid, is_placed = "", None, True

    def __init__(self, *messages) -> None:
        self.messages, self.killed = list(messages), False

    def has_left(self) -> bool:
        return False

    def packed(self, name, arguments) -> None: ...

    def write(self, command) -> None: ...

    def read(self):
        time.sleep(0.01)
        messages, self.messages = self.messages, []
        return messages

    def kill(self) -> None:
        self.killed = True


def silent_fleet(request, *messages, replacements=10, **limits):
    started: list[Silent] = []

    def start(number: int) -> Silent:
        started.append(Silent(*messages))
        return started[-1]

    settings = {"limits": Limits(**limits), "replacements": replacements, "wait_s": 0.02}
    fleet = Fleet(start, 1, max_length=10_000, vocabulary=64, **settings)
    request.addfinalizer(fleet.close)
    return fleet, started


def test_silent_generator_is_replaced(request):
    fleet, started = silent_fleet(request, ("ready", Report()), silent_s=0.1)
    fleet.submit(group(0))
    wait_until(lambda: (fleet.poll(), fleet.losses)[1])
    assert fleet.losses[0].kind == "silent"
    assert fleet.losses[0].num_requests == 2
    assert started[0].killed
    assert len(started) == 2


@pytest.mark.parametrize("limits", [{"start_s": 0.1}, {"silent_s": 0.05}], ids=["it reports", "it is silent"])
def test_generator_that_never_becomes_ready_is_lost(request, monkeypatch, limits):
    monkeypatch.setattr(peer_module, "MAX_SILENCE_STARTING_S", 0.1)
    fleet, started = silent_fleet(request, replacements=2, **limits)
    with pytest.raises(EngineError, match=r"generator 0 .* after 2 replacements"):
        fleet.wait_ready()
    assert [loss.kind for loss in fleet.losses] == ["start"] * 3
    assert all(link.killed for link in started)


class Cluster:
    """Nodes with room for one generator each, in threads of this process."""

    def __init__(self, request, nodes: list[str]) -> None:
        self.nodes, self.links = nodes, list[NodeLink]()
        self.engines: dict[str, GatedEngine] = {}
        request.addfinalizer(lambda: [engine.break_down() for engine in self.engines.values()])

    def start(self, number: int) -> "NodeLink":
        self.links.append(NodeLink(self))
        return self.links[-1]

    def place_next(self) -> str | None:
        """Return a node without a generator."""
        return next((node for node in self.nodes if node not in self.engines), None)

    def remove(self, node: str) -> None:
        self.nodes.remove(node)
        self.engines.pop(node).break_down()


class NodeLink(LocalLink):
    """Waits for a node, then serves a generator there."""

    is_placed = False

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.node = cluster, ""
        super().__init__(self._make)

    def _make(self) -> Generator:
        wait_until(lambda: self.is_killed or self.cluster.place_next(), 300.0)
        self.node = self.cluster.place_next() or ""
        self.is_placed = True
        engine = self.cluster.engines[self.node] = GatedEngine(polls=lambda request: 1, slots=64)
        engine.allow(10_000)
        return Generator(engine, slots=64)

    def has_left(self) -> bool:
        return self.is_placed and self.node not in self.cluster.nodes


def cluster_fleet(request, nodes: list[str], num: int, **settings):
    cluster = Cluster(request, nodes)
    fleet = Fleet(cluster.start, num, max_length=10_000, vocabulary=64, wait_s=0.02, **settings)
    request.addfinalizer(fleet.close)
    return fleet, cluster


def test_a_lost_node_is_no_fault_and_its_generator_waits_for_another(request):
    """No loss counts as a fault, though none may be replaced, and every request comes back once."""
    fleet, cluster = cluster_fleet(request, ["a", "b"], 2, replacements=0)
    fleet.wait_ready()
    fleet.push_weights({"w": 1}, 4)
    assert (fleet.num_ready, fleet.num_placed) == (2, 2)
    requests = [request for number in range(8) for request in group(number)]
    fleet.submit(requests[:8])
    wait_until(lambda: len(cluster.engines["b"].submitted) > 0)
    completions = drain(fleet)
    assert {completion.first_version for completion in completions} == {4}
    fleet.submit(requests[8:])
    cluster.remove("a")
    completions += drain(fleet)
    assert keys(completion.request for completion in completions) == keys(requests)
    wait_until(lambda: (fleet.poll(), len(fleet.losses) == 1)[1])
    assert (fleet.num_ready, fleet.num_placed) == (1, 1)
    cluster.nodes.append("c")
    wait_until(lambda: (fleet.poll(), fleet.num_ready == 2)[1])


@pytest.mark.parametrize(("nodes", "placed"), [([], 0), (["a"], 1)])
def test_too_little_room_ends_the_fleet_in_time(request, monkeypatch, nodes, placed):
    fleet, _ = cluster_fleet(request, nodes, 2)
    wait_until(lambda: fleet.num_placed == placed)
    monkeypatch.setattr(fleet_module, "ROOM_S", 0.1)
    with pytest.raises(EngineError, match=f"room for {placed} of 2 generators"):
        fleet.wait_ready()


def test_member_lost_in_a_pause_is_replaced_in_it(gated):
    fleet, made = gated(2)
    outside, inside = [*group(0), *group(1)], [*group(2), *group(3)]
    fleet.submit(outside)
    for engines in made.values():
        received(engines, 2)
    with fleet.paused():
        assert fleet.num_pending == 0
        fleet.submit(inside)
        # Member 0 has begun a poll when the pause comes, and ends it.
        made[0][0].break_down()
        made[1][0].allow(1)
        wait_until(lambda: (fleet.poll(), len(made[0]) == 2)[1])

        def allow_all() -> bool:
            returned.extend(fleet.poll())
            for engines in made.values():
                engines[-1].allow(5)
            return not fleet.num_pending

        returned: list = []
        wait_until(allow_all)
        assert keys(completion.request for completion in returned) == keys(inside)
    assert fleet.num_pending == len(outside)
    for engines in made.values():
        engines[-1].allow(100)
    assert keys(completion.request for completion in drain(fleet)) == keys(outside)


class Borrowed(Parcel):
    """The learner's memory, which a device reads after its engine has returned."""

    is_borrowed, is_read = True, False

    def __init__(self, weights: Mapping[str, Any]) -> None:
        self._weights = dict(weights)

    def names(self) -> Iterable[str]:
        return self._weights

    def open(self) -> dict[str, Any]:
        return self._weights

    def wait_for_copies(self) -> None:
        time.sleep(0.05)
        self.is_read = True


def test_learner_waits_while_its_own_memory_is_read(gated):
    """And a newcomer is given the learner's weights once more."""
    published: list[Borrowed] = []

    def publish(weights):
        published.append(Borrowed(weights))
        return published[-1]

    fleet, made = gated(1, publish=publish, weights=lambda: {"a": 9})
    fleet.push_weights({"a": 1}, 3)
    assert made[0][0].pushed == [3], "the push has returned"
    assert published[0].is_read
    fleet.submit(group(0))
    received(made[0], 2)
    made[0][0].break_down()
    # The fleet waits until the newcomer has copied the weights, which it may report only after its first poll.
    allowing = threading.Thread(target=lambda: wait_until(lambda: len(made[0]) == 2 and (made[0][1].allow(5), True)))
    allowing.start()
    assert {completion.first_version for completion in drain(fleet)} == {3}
    allowing.join()
    assert (made[0][1].pushed, published[1].is_read) == ([3], True)


class Travelling(Parcel):
    """Weights that arrive when a test says so, unless they are gone by then."""

    def __init__(self, *, is_gone: bool = False) -> None:
        self.arrives, self.is_gone = threading.Event(), is_gone

    def names(self) -> Iterable[str]:
        return ("a",)

    def open(self) -> dict[str, Any]:
        assert self.arrives.wait(300.0)
        if self.is_gone:
            raise WeightsFreed
        return {"a": 1}


@pytest.mark.parametrize("is_gone, expected", [(False, ([1], [1, 3])), (True, ([], [3]))])
def test_weights_that_travel_longer_than_a_step_are_used(is_gone: bool, expected: tuple[list[int], list[int]]):
    engine = FakeEngine(polls=lambda request: 1)
    generator, parcels = Generator(engine, slots=4), [Travelling(is_gone=is_gone), Travelling(), Travelling()]
    for version, parcel in enumerate(parcels, start=1):
        generator.push(parcel, version)
        generator.submit(group(version))
        generator.advance(lambda kind, value: None)
    assert not engine.submitted, "requests after a push wait for its weights"
    for parcel, pushed in zip((parcels[0], parcels[2]), expected, strict=True):
        parcel.arrives.set()
        wait_until(lambda pushed=pushed: (generator.advance(lambda *_: None), engine.pushed == pushed)[1])
    wait_until(lambda: (generator.advance(lambda *_: None), len(engine.submitted) == 6)[1])
    generator.close()
