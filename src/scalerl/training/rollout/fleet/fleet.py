"""An Engine over generators: requests go to the least loaded generator, and each completion is returned once.

A generator that dies, or is silent or stuck for too long, is replaced; its requests go to other generators, and the
replacement starts with the last weights. After too many replacements the fleet raises an error with the reason. If one
of the first generators cannot start because of a user error, it does so at once. Groups stay together, because their
completions share a prompt. This module uses neither torch nor Ray: `start` makes a link to a generator anywhere.

The replacement of a generator whose machine has left the cluster waits for room again, without requests. Such a loss
does not count as a failure.
"""

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scalerl.errors import EngineError, RecipeError, UserError, first_line
from scalerl.training.remote.peer import Kind, Limits, Link, Lost, Peer, send_all
from scalerl.training.rollout.engine import EngineBase
from scalerl.training.rollout.fleet.messages import Report, bare
from scalerl.training.types import Completion, Request, Work

WINDOW_S = 3600.0
"""Replacements within this many seconds are counted."""
ROOM_S = 600.0
"""Seconds for which a cluster may have too little room."""
_WAIT_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """The loss of one generator, which was replaced or ended the fleet."""

    number: int
    kind: Kind
    reason: str
    num_requests: int
    """Number of its requests, which were given to other generators."""


@dataclass(slots=True)
class _Lane:
    """The requests submitted outside pauses, or those submitted inside the current pause."""

    waiting: deque[Request] = field(default_factory=deque)
    """Requests not assigned to a generator."""
    arrived: list[Completion] = field(default_factory=list)
    """Completions not returned yet."""
    num_pending: int = 0
    """Number of requests whose completion was not returned yet."""


@dataclass(slots=True, eq=False)
class _Seat:
    """One position in the fleet, and the generator that currently holds it."""

    number: int
    peer: Peer
    is_replacement: bool = False
    """Whether it replaces another generator."""
    is_greeted: bool = False
    """Whether it was given the last weights."""
    num_pushed: int = 0
    report: Report = field(default_factory=Report)
    pending: dict[str, tuple[Request, _Lane]] = field(default_factory=dict)
    """Its requests by key, each with its lane."""

    @property
    def is_reading(self) -> bool:
        """Whether it has neither copied nor refused the weights of the last push yet."""
        return self.report.times.copies < self.num_pushed and not self.report.unmapped


class Fleet(EngineBase):
    """An Engine over generators."""

    def __init__(
        self,
        start: Callable[[int], Link],
        num_generators: int,
        *,
        max_length: int,
        vocabulary: int,
        publish: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
        weights: Callable[[], Mapping[str, Any]] | None = None,
        version: int = 0,
        limits: Limits | None = None,
        replacements: int = 10,
        wait_s: float = _WAIT_S,
    ) -> None:
        """Start the generators and return. More than `replacements` losses within WINDOW_S end the fleet.

        `start(number)` starts a generator. `publish` returns weights in a form that can be sent: a copy that does not
        change, or a parcel. If a parcel is the learner's own memory, `weights` returns the last pushed weights again,
        for new generators.
        """
        super().__init__("the fleet", max_length=max_length, vocabulary=vocabulary, version=version)
        if num_generators < 1:
            raise ValueError(f"a fleet needs at least 1 generator, got {num_generators}")
        self._start = start
        self._publish = publish
        self._weights = weights
        self._limits = limits or Limits()
        self._replacements = replacements
        self._wait_s = wait_s
        self._news = threading.Event()
        self._pushed: tuple[Mapping[str, Any], int] | None = None
        self._lane = _Lane()
        self._of_lost = Report()
        """The work and times of lost generators."""
        self._replaced: list[tuple[float, Link]] = []
        """Times of replacements, each with the link to the lost generator."""
        self.losses: list[Loss] = []
        """The losses of all generators so far."""
        self._lacks_room_since = math.inf
        self.seats = [_Seat(number, self._peer(number)) for number in range(num_generators)]

    # Engine -----------------------------------------------------------------------------------------------------------

    @property
    def num_pending(self) -> int:
        """The number of requests whose completion was not returned yet; in a pause, of those submitted inside it."""
        return self._lane.num_pending

    @property
    def total(self) -> Report:
        """The work and times of all generators so far, including lost ones."""
        return sum((seat.report for seat in self.seats), self._of_lost)

    def _work(self, *, paused: bool) -> Work:
        return self.total.eval_work if paused else self.total.work

    def _enqueue(self, requests: Sequence[Request]) -> None:
        self._lane.waiting.extend(requests)
        self._lane.num_pending += len(requests)
        self._assign()

    def _advance(self) -> list[Completion]:
        """Return finished completions; if there are none but some are pending, wait a moment."""
        lane = self._lane
        self._require_room(1)
        self._hear(lambda: not lane.arrived and lane.num_pending > 0)
        completions = lane.arrived
        lane.arrived = []
        lane.num_pending -= len(completions)
        return completions

    def _put_aside(self) -> _Lane:
        """Let generators pause after their current chunk."""
        aside = self._lane
        self._lane = _Lane()
        send_all(self._peers(), "hold", True)
        return aside

    def _bring_back(self, held: _Lane) -> None:
        inside = self._lane
        self._lane = held
        send_all(self._peers(), "hold", False)
        for seat in self.seats:
            seat.pending = {key: given for key, given in seat.pending.items() if given[1] is not inside}

    def _peers(self) -> list[Peer]:
        return [seat.peer for seat in self.seats if seat.is_greeted]

    def _load(self, weights: Mapping[str, Any], version: int) -> None:
        """Let generators sample with these weights after their current chunk.

        If they read the learner's own memory, wait until all have done so, because it changes in the next step.
        """
        # Kept for new generators until the next push.
        self._pushed = self._publish(weights), version
        self._push_to([seat for seat in self.seats if seat.is_greeted])

    def _push_to(self, seats: list[_Seat]) -> None:
        assert self._pushed is not None
        published, version = self._pushed
        for seat in seats:
            seat.num_pushed += 1
        send_all([seat.peer for seat in seats], "push", published, version)
        if self._is_borrowed:
            while any(seat in self.seats and seat.is_reading for seat in seats):
                self._hear(lambda: True)
            if unable := [seat for seat in seats if seat in self.seats and seat.report.unmapped]:
                self._copy_to(unable)

    @property
    def _is_borrowed(self) -> bool:
        """Whether the last weights are the learner's own memory."""
        return self._pushed is not None and getattr(self._pushed[0], "is_borrowed", False)

    def _publish_again(self) -> None:
        assert self._pushed is not None
        assert self._weights is not None, "the learner's own memory can be asked for again"
        self._pushed = self._publish(self._weights()), self._pushed[1]

    def _copy_to(self, seats: list[_Seat]) -> None:
        """Send the last weights again, as a copy, to generators that cannot map the learner's memory."""
        publisher: Any = self._publish
        publisher.stop_borrowing(seats[0].report.unmapped)
        self._publish_again()
        for seat in seats:
            seat.num_pushed -= 1
        self._push_to(seats)

    def _drop_all(self) -> None:
        for seat in self.seats:
            seat.peer.kill()
        self.seats = []
        self._pushed = None
        self._lane = _Lane()

    # Beyond the Engine protocol ---------------------------------------------------------------------------------------

    def wait_ready(self) -> None:
        """Wait until all generators have built their engines; those that fail are replaced, up to the limit."""
        while self.num_ready < len(self.seats):
            self._require_usable()
            self._require_room(len(self.seats))
            self._hear(lambda: True)

    @property
    def num_ready(self) -> int:
        return sum(seat.is_greeted for seat in self.seats)

    @property
    def num_placed(self) -> int:
        """The number of generators that have a process, and so hold devices."""
        return sum(seat.peer.link.is_placed for seat in self.seats)

    @property
    def pids(self) -> list[int | None]:
        """Ids of the generators' processes; None for one on another machine."""
        return [seat.peer.link.pid for seat in self.seats]

    def _peer(self, number: int) -> Peer:
        return Peer(self._start(number), limits=self._limits, news=self._news)

    def _hear(self, waits: Callable[[], bool]) -> None:
        """Read messages of generators, if `waits` wait a moment for more, replace lost generators and assign work."""
        self._listen()
        if waits():
            self._news.wait(self._wait_s)
            self._news.clear()
            self._listen()
        self._greet()
        self._assign()

    def _greet(self) -> None:
        """Send the last weights to generators that have become ready, before any request."""
        seats = [seat for seat in self.seats if seat.peer.is_ready and not seat.is_greeted]
        for seat in seats:
            seat.is_greeted = True
        if seats and self._pushed is not None:
            if self._is_borrowed:
                self._publish_again()
            self._push_to(seats)
        if seats and self._is_paused:
            send_all([seat.peer for seat in seats], "hold", True)

    def _require_room(self, num: int) -> None:
        """Raise EngineError if a cluster has had no room for `num` generators for too long."""
        now = time.monotonic()
        if self.num_placed >= num:
            self._lacks_room_since = math.inf
            return
        self._lacks_room_since = min(self._lacks_room_since, now)
        if now - self._lacks_room_since > ROOM_S:
            self._failure = (
                f"the cluster has had room for {self.num_placed} of {len(self.seats)} generators for {ROOM_S / 60:g} "
                f"minutes: add nodes, or ask for fewer (rollout.generators)"
            )
            raise EngineError(self._failure)

    def _listen(self) -> None:
        for seat in list(self.seats):
            try:
                while (message := seat.peer.receive()) is not None:
                    self._read(seat, *message)
            except Exception as error:
                self._replace(seat, error)

    def _read(self, seat: _Seat, kind: str, value: Any) -> None:
        if kind == "ready":
            seat.report = value
        elif kind == "report":
            seat.report = replace(value, completions=())
            for completion in value.completions:
                # A request may have gone to another generator meanwhile, or may have been dropped after a pause.
                key = completion.request.key
                request, lane = seat.pending.get(key, (None, self._lane))
                if request is not None and request.seed == completion.request.seed:
                    del seat.pending[key]
                    lane.arrived.append(replace(completion, request=request))

    def _replace(self, seat: _Seat, error: Exception) -> None:
        """Replace a lost generator, or raise an error with the reason that ends the fleet."""
        seat.peer.kill()
        reason = first_line(error)
        kind: Kind = "start"
        if isinstance(error, Lost):
            kind = error.kind
        elif seat.peer.is_ready:
            kind = "died"
        self.losses.append(Loss(number=seat.number, kind=kind, reason=reason, num_requests=len(seat.pending)))
        if isinstance(error, UserError) and not seat.is_replacement:
            self._failure = reason
            if isinstance(error, RecipeError):
                raise error
            raise RecipeError(reason)
        if not self._may_replace(seat.peer.link):
            limit = self._replacements
            self._failure = f"generator {seat.number} {reason}" if isinstance(error, Lost) else reason
            if limit:
                self._failure += (
                    f", after {limit} replacements of generators within {WINDOW_S / 60:g} minutes: the limit "
                    f"(rollout.max_replacements)"
                )
            raise EngineError(self._failure)
        self._of_lost += seat.report
        for request, lane in reversed(seat.pending.values()):
            # Put them in front: their groups are the oldest.
            lane.waiting.appendleft(request)
        place = self.seats.index(seat)
        self.seats[place] = _Seat(seat.number, self._peer(seat.number), is_replacement=True)

    def _may_replace(self, link: Link) -> bool:
        """Return whether a lost generator may be replaced, and count it unless its machine has left the cluster."""
        now = time.monotonic()
        replaced = [(at, lost) for at, lost in [*self._replaced, (now, link)] if now - at <= WINDOW_S]
        if len(replaced) > self._replacements:
            # Check only now: a cluster takes a moment to notice a lost machine.
            replaced = [(at, lost) for at, lost in replaced if not lost.has_left()]
        self._replaced = replaced
        return len(replaced) <= self._replacements

    def _assign(self) -> None:
        """Assign waiting requests to ready generators, group by group, each to the one with the fewest requests.

        Requests that a pause has put aside wait until it ends.
        """
        lane = self._lane
        able = [seat for seat in self.seats if seat.is_greeted]
        if not able:
            return
        given_to: dict[int, list[Request]] = {}
        for _, group in itertools.groupby(lane.waiting, key=lambda request: request.group):
            place = min(range(len(able)), key=lambda place: len(able[place].pending))
            requests = list(group)
            able[place].pending.update((request.key, (request, lane)) for request in requests)
            given_to.setdefault(place, []).extend(requests)
        lane.waiting.clear()
        for place, requests in given_to.items():
            able[place].peer.send("submit", tuple(map(bare, requests)))
