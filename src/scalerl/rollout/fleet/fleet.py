"""An Engine over generators, which sample by themselves: requests go to the least loaded, completions return once.

A generator that dies, or is silent or stuck for too long, is replaced; its requests are given to others, and a newcomer
starts with the last weights. After too many replacements the fleet ends with the reason, and at once if a first
generator cannot start because of a mistake of the user. Groups stay together, since their completions share a prompt.
Uses no torch and no Ray: `start` makes a link to a generator, wherever that runs.

A cluster may grow and shrink. A generator that it has no room for waits until it has, without requests: so a fleet asks
for as many as it could ever use, and those that join are newcomers like any other. One whose machine has left the
cluster is replaced, which again means to wait for room, and does not count as a fault.
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
from scalerl.remote.peer import Kind, Limits, Link, Lost, Peer, send_all
from scalerl.rollout.engine import AnyEngine
from scalerl.rollout.fleet.messages import Report, bare
from scalerl.types import Completion, Request, Work

WINDOW_S = 3600.0
"""Replacements are counted within this time."""
ROOM_S = 600.0
"""How long a cluster may have too little room."""
_WAIT_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """One generator that was replaced, or the loss that ended the fleet."""

    number: int
    kind: Kind
    reason: str
    num_requests: int
    """Requests it had, which were given to others."""


@dataclass(slots=True)
class _Lane:
    """The requests that were submitted outside of pauses, or within the current one."""

    waiting: deque[Request] = field(default_factory=deque)
    """Those that no generator has."""
    arrived: list[Completion] = field(default_factory=list)
    """Completions that were not returned yet."""
    num_pending: int = 0
    """Requests that were not returned yet."""


@dataclass(slots=True, eq=False)
class _Seat:
    """One position in the fleet, and the generator that currently fills it."""

    number: int
    peer: Peer
    is_newcomer: bool = False
    """Whether the fleet began without it: it replaces another one, or joins."""
    is_ready: bool = False
    is_greeted: bool = False
    """Whether it has been given the last weights."""
    num_pushed: int = 0
    report: Report = field(default_factory=Report)
    pending: dict[str, tuple[Request, _Lane]] = field(default_factory=dict)
    """Its requests by key, and the lane that they belong to."""

    @property
    def is_reading(self) -> bool:
        """Whether it has not yet copied, nor refused, the weights of the last push."""
        return self.report.pace.copies < self.num_pushed and not self.report.unmapped


class Fleet(AnyEngine):
    """An Engine over generators."""

    def __init__(
        self,
        start: Callable[[int], Link],
        num_generators: int,
        *,
        most_generators: int | None = None,
        max_length: int,
        vocabulary: int,
        publish: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
        weights: Callable[[], Mapping[str, Any]] | None = None,
        version: int = 0,
        limits: Limits | None = None,
        replacements: int = 10,
        wait_s: float = _WAIT_S,
    ) -> None:
        """Start the generators and return. The fleet ends at the next loss after `replacements` in WINDOW_S.

        It begins with `num_generators`; up to `most_generators` take part whenever there is room for them.

        `start(number)` starts one. `publish` returns weights as they travel: a copy that stays as it is, or a parcel.
        Where that is the learner's own memory, `weights` returns those of the last push once more, for newcomers.
        """
        super().__init__("the fleet", max_length=max_length, vocabulary=vocabulary, version=version)
        if num_generators < 1:
            raise ValueError(f"a fleet needs at least 1 generator, got {num_generators}")
        self._start, self._publish, self._weights = start, publish, weights
        self._limits, self._replacements, self._wait_s = limits or Limits(), replacements, wait_s
        self._news = threading.Event()
        self._pushed: tuple[Mapping[str, Any], int] | None = None
        self._lane = _Lane()
        self._of_lost = Report()
        """The work and pace of generators that were lost."""
        self._replaced: list[tuple[float, Link]] = []
        """When a generator was replaced, and the link to it."""
        self.losses: list[Loss] = []
        """All generators that were lost."""
        self.num_first = num_generators
        """How many it begins with."""
        self._lacks_room_since = math.inf
        self.seats = [
            _Seat(number, self._peer(number), is_newcomer=number >= num_generators)
            for number in range(max(num_generators, most_generators or 0))
        ]

    # Engine -----------------------------------------------------------------------------------------------------------

    @property
    def num_pending(self) -> int:
        """The number of requests that were not returned yet; within a pause, of those submitted inside it."""
        return self._lane.num_pending

    @property
    def total(self) -> Report:
        """What all generators did so far, those that were lost included."""
        return sum((seat.report for seat in self.seats), self._of_lost)

    def _work(self, *, paused: bool) -> Work:
        return self.total.eval_work if paused else self.total.work

    def _enqueue(self, requests: Sequence[Request]) -> None:
        self._lane.waiting.extend(requests)
        self._lane.num_pending += len(requests)
        self._assign()

    def _advance(self) -> list[Completion]:
        """Return what has finished; wait a moment if nothing has and something is pending."""
        lane = self._lane
        self._require_room(1)
        self._hear(lambda: not lane.arrived and lane.num_pending > 0)
        completions, lane.arrived = lane.arrived, []
        lane.num_pending -= len(completions)
        return completions

    def _put_aside(self) -> _Lane:
        """Generators pause after the chunk they are at."""
        aside, self._lane = self._lane, _Lane()
        send_all(self._peers(), "hold", True)
        return aside

    def _bring_back(self, held: _Lane) -> None:
        inside, self._lane = self._lane, held
        send_all(self._peers(), "hold", False)
        for seat in self.seats:
            seat.pending = {key: given for key, given in seat.pending.items() if given[1] is not inside}

    def _peers(self) -> list[Peer]:
        return [seat.peer for seat in self.seats if seat.is_greeted]

    def _load(self, weights: Mapping[str, Any], version: int) -> None:
        """Let generators sample with these weights after the chunk they are at.

        Where they read the learner's own memory, wait until all have, since it changes in the next step.
        """
        # Kept for newcomers until the next push.
        self._pushed = self._publish(weights), version
        self._push_to([seat for seat in self.seats if seat.is_greeted])

    def _push_to(self, seats: list[_Seat]) -> None:
        assert self._pushed is not None
        published, version = self._pushed
        for seat in seats:
            seat.num_pushed += 1
        send_all([seat.peer for seat in seats], "push", published, version)
        if getattr(published, "is_borrowed", False):
            while any(seat in self.seats and seat.is_reading for seat in seats):
                self._hear(lambda: True)
            if unable := [seat for seat in seats if seat in self.seats and seat.report.unmapped]:
                self._copy_to(unable)

    def _copy_to(self, seats: list[_Seat]) -> None:
        """Give the last weights once more, as a copy, to generators that cannot reach the learner's own memory."""
        assert self._pushed is not None
        assert self._weights is not None, "the learner's own memory can be asked for again"
        publisher: Any = self._publish
        publisher.stop_borrowing(seats[0].report.unmapped)
        self._pushed = self._publish(self._weights()), self._pushed[1]
        for seat in seats:
            seat.num_pushed -= 1
        self._push_to(seats)

    def _drop_all(self) -> None:
        for seat in self.seats:
            seat.peer.kill()
        self.seats, self._pushed, self._lane = [], None, _Lane()

    # What else a run needs --------------------------------------------------------------------------------------------

    def wait_ready(self) -> None:
        """Wait until the first generators have built their engines; those that cannot are replaced, up to the limit."""
        while self.num_ready < self.num_first:
            self._require_usable()
            self._require_room(self.num_first)
            self._hear(lambda: True)

    @property
    def num_ready(self) -> int:
        return sum(seat.is_ready for seat in self.seats)

    @property
    def num_placed(self) -> int:
        """The number of generators that have a process, and with it the devices of one."""
        return sum(seat.peer.link.is_placed for seat in self.seats)

    @property
    def pids(self) -> list[int | None]:
        """The processes of the generators; None for one on another machine."""
        return [seat.peer.link.pid for seat in self.seats]

    @property
    def versions(self) -> tuple[int, ...]:
        """The version that each generator samples with, as far as is known; -1 before its first report."""
        return tuple(seat.report.version for seat in self.seats)

    def _peer(self, number: int) -> Peer:
        return Peer(self._start(number), limits=self._limits, news=self._news)

    def _hear(self, waits: Callable[[], bool]) -> None:
        """Read what generators say, wait a moment for more if `waits`, replace those that are lost, and give work."""
        self._listen()
        if waits():
            self._news.wait(self._wait_s)
            self._news.clear()
            self._listen()
        self._greet()
        self._assign()

    def _greet(self) -> None:
        """Give those that have become ready the last weights, before any request."""
        seats = [seat for seat in self.seats if seat.is_ready and not seat.is_greeted]
        for seat in seats:
            seat.is_greeted = True
        if seats and self._pushed is not None:
            published, version = self._pushed
            if getattr(published, "is_borrowed", False):
                assert self._weights is not None, "the learner's own memory can be asked for again"
                self._pushed = self._publish(self._weights()), version
            self._push_to(seats)
        if seats and self._is_paused:
            send_all([seat.peer for seat in seats], "hold", True)

    def _require_room(self, num: int) -> None:
        """Raise EngineError if a cluster has had no room for this number of generators for too long."""
        now = time.monotonic()
        if self.num_placed >= num:
            self._lacks_room_since = math.inf
            return
        self._lacks_room_since = min(self._lacks_room_since, now)
        if now - self._lacks_room_since > ROOM_S:
            self._failure = (
                f"the cluster has had room for {self.num_placed} of {self.num_first} generators for {ROOM_S / 60:g} "
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
            seat.is_ready, seat.report = True, value
        elif kind == "report":
            seat.report = replace(value, completions=())
            for completion in value.completions:
                # A request that was given to another one meanwhile, or dropped at the end of a pause, is not pending.
                key = completion.request.key
                request, lane = seat.pending.get(key, (None, self._lane))
                if request is not None and request.seed == completion.request.seed:
                    del seat.pending[key]
                    lane.arrived.append(replace(completion, request=request))

    def _replace(self, seat: _Seat, error: Exception) -> None:
        """Start another generator in the place of a lost one, or end the fleet with the reason."""
        seat.peer.kill()
        reason = first_line(error)
        kind: Kind = error.kind if isinstance(error, Lost) else "died" if seat.is_ready else "start"
        self.losses.append(Loss(number=seat.number, kind=kind, reason=reason, num_requests=len(seat.pending)))
        if isinstance(error, UserError) and not seat.is_newcomer:
            self._failure = reason
            raise RecipeError(reason) if not isinstance(error, RecipeError) else error
        has_another = self._may_replace(seat.peer.link)
        if not has_another and len(self.seats) <= self.num_first:
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
            # In front: their groups are the oldest.
            lane.waiting.appendleft(request)
        others = [_Seat(seat.number, self._peer(seat.number), is_newcomer=True)] if has_another else []
        place = self.seats.index(seat)
        self.seats[place : place + 1] = others

    def _may_replace(self, link: Link) -> bool:
        """Return whether a lost generator may be replaced, and count it if so; not those whose machine has left."""
        now = time.monotonic()
        self._replaced = [(at, lost) for at, lost in self._replaced if now - at <= WINDOW_S]
        if len(self._replaced) >= self._replacements:
            # Asked only now: a cluster takes a moment to notice.
            self._replaced = [(at, lost) for at, lost in self._replaced if not lost.has_left()]
            if link.has_left():
                return True
        if len(self._replaced) >= self._replacements:
            return False
        self._replaced.append((now, link))
        return True

    def _assign(self) -> None:
        """Give the waiting requests to ready generators, group by group, each to the one with the fewest.

        Those that a pause has put aside wait for its end.
        """
        lane, able = self._lane, [seat for seat in self.seats if seat.is_greeted]
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
