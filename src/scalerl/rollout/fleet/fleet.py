"""An Engine over members that sample by themselves: requests go to the least loaded, completions return once.

A member that dies, or is silent or stuck for too long, is replaced; its requests are given to others, and a newcomer
starts with the last weights. After too many replacements the fleet ends with the reason, and at once if a first member
cannot start because of a mistake of the user. Groups stay together, since their completions share a prompt. Uses no
torch and no Ray: `threads` and `ray_members` have the members.

Silence is measured on a clock that runs only while the driver listens, so that a long step of the learner, or a
suspended driver, does not count against the members.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from scalerl.errors import EngineError, RecipeError
from scalerl.rollout.fleet.members import Launcher, Limits, Loss, Member, MemberLost
from scalerl.rollout.fleet.messages import Command, Hold, Pace, Push, Report, Submit
from scalerl.types import Completion, Request, Work


@dataclass(frozen=True, slots=True)
class _Given:
    """A submitted request, and whether it was submitted during a pause."""

    request: Request
    inside: bool


@dataclass(slots=True)
class _Seat:
    """One position in the fleet, and the member that currently fills it."""

    number: int
    member: Member
    started_s: float
    """Time of its start, on the clock that runs only while the driver listens."""
    heard_s: float
    """Time of the last report, on the same clock."""
    newcomer: bool
    """Whether it replaces another member. It gets no requests before it is ready: its node may be going down."""
    report: Report = field(default_factory=Report)
    pending: dict[str, "_Given"] = field(default_factory=dict)
    num_given: int = 0

    def give(self, *commands: Command) -> None:
        self.member.give(self.num_given, commands)
        self.num_given += 1

    @property
    def able(self) -> bool:
        return self.report.ready or not self.newcomer


class Fleet:
    """An Engine over members, which can pause (loop/seams.PausableEngine)."""

    def __init__(
        self,
        launcher: Launcher,
        num_members: int,
        *,
        check: Callable[[Request], None],
        version: int = 0,
        limits: Limits | None = None,
        wait_s: float = 0.1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the members and return. `check` raises ValueError for a request that no member could serve."""
        if num_members < 1:
            raise ValueError(f"a fleet needs at least 1 member, got {num_members}")
        self._launcher = launcher
        self._check = check
        self._limits = limits or Limits()
        self._wait_s = wait_s
        self._clock = clock
        self._version = version
        self._push: Push | None = None
        self._paused = False
        self._waiting: deque[_Given] = deque()
        self._arrived: list[tuple[Completion, bool]] = []
        """Completions that were not returned yet, and whether their requests were submitted within the pause."""
        self._num_pending = {False: 0, True: 0}
        """Requests that were not returned yet, outside and inside of a pause."""
        self._lost_work, self._lost_eval_work = Work(), Work()
        self._lost_pace = Pace()
        self._listened_s = 0.0
        self._replaced_at: deque[float] = deque()
        self._end: str | None = None
        self.losses: deque[Loss] = deque(maxlen=100)
        """The last members that were lost."""
        self.num_lost = 0
        self._seats = [
            _Seat(number=number, member=launcher.start(number), started_s=0.0, heard_s=0.0, newcomer=False)
            for number in range(num_members)
        ]

    # Engine -----------------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        return self._version

    @property
    def num_pending(self) -> int:
        """The number of requests that were not returned yet; within a pause, of those submitted inside it."""
        return self._num_pending[self._paused]

    @property
    def work(self) -> Work:
        """The work of all members so far, those that were lost included."""
        return sum((seat.report.work for seat in self._seats), self._lost_work)

    @property
    def eval_work(self) -> Work:
        return sum((seat.report.eval_work for seat in self._seats), self._lost_eval_work)

    def submit(self, requests: Sequence[Request]) -> None:
        self._require_open()
        for request in requests:
            self._check(request)
        self._waiting.extend(_Given(request, self._paused) for request in requests)
        self._num_pending[self._paused] += len(requests)
        self._assign()

    def poll(self) -> list[Completion]:
        """Return what has finished; wait a moment if nothing has and something is pending."""
        self._require_open()
        self._hear(lambda: not self._returnable() and self.num_pending > 0)
        self._assign()
        completions = self._returnable()
        self._arrived = [(completion, inside) for completion, inside in self._arrived if inside != self._paused]
        self._num_pending[self._paused] -= len(completions)
        return completions

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Put all requests aside; within this only those submitted inside are served, and what is left is dropped.

        Members pause after the chunk they are at.
        """
        self._require_open()
        assert not self._paused, "a pause within a pause"
        self._hold(True)
        try:
            yield
        finally:
            self._hold(False)
            for seat in self._seats:
                seat.pending = {key: given for key, given in seat.pending.items() if not given.inside}
            self._waiting = deque(given for given in self._waiting if not given.inside)
            self._arrived = [(completion, inside) for completion, inside in self._arrived if not inside]
            self._num_pending[True] = 0

    def _hold(self, paused: bool) -> None:
        self._paused = paused
        for seat in self._seats:
            seat.give(Hold(paused=paused))

    def _returnable(self) -> list[Completion]:
        return [completion for completion, inside in self._arrived if inside == self._paused]

    def push_weights(self, weights: Mapping[str, Any], version: int) -> None:
        self._require_open()
        if version < self._version:
            raise ValueError(f"versions only rise: {version} was pushed after {self._version}")
        # Kept for newcomers until the next push.
        self._push, self._version = Push(version=version, weights=self._launcher.publish(weights)), version
        for seat in self._seats:
            seat.give(self._push)

    def close(self) -> None:
        if self._end is None:
            self._end = "the engine is closed"
        for seat in self._seats:
            seat.member.kill()
        self._launcher.close()
        self._seats, self._push = [], None
        self._waiting.clear()
        self._arrived.clear()
        self._num_pending = {False: 0, True: 0}

    # What else a run needs --------------------------------------------------------------------------------------------

    def wait_ready(self) -> None:
        """Wait until every member has built its engine; those that cannot are replaced, up to the limit."""
        while self.num_ready < len(self._seats):
            self._require_open()
            self._hear(lambda: True)

    def _hear(self, waits: Callable[[], bool]) -> None:
        """Read reports, wait a moment for more if `waits`, and replace members that are lost."""
        start = self._clock()
        self._listen()
        if waits():
            self._launcher.wait([seat.member for seat in self._seats], self._wait_s)
            self._listen()
        # At most a second at a time: a driver that was suspended in between has not listened.
        self._listened_s += min(self._clock() - start, 1.0)
        self._replace_lost()

    @property
    def pace(self) -> Pace:
        """How long the engines of all members took so far, those that were lost included."""
        return sum((seat.report.pace for seat in self._seats), self._lost_pace)

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that members hold, as "node/device"; a starting member has not reported its own yet."""
        return tuple(device for seat in self._seats for device in seat.report.devices)

    @property
    def num_members(self) -> int:
        return len(self._seats)

    @property
    def num_ready(self) -> int:
        return sum(seat.report.ready for seat in self._seats)

    @property
    def member_versions(self) -> tuple[int, ...]:
        """The version that each member samples with, as far as is known; -1 before its first report."""
        return tuple(seat.report.version for seat in self._seats)

    def _require_open(self) -> None:
        if self._end is not None:
            raise EngineError(self._end)

    def _listen(self) -> None:
        """Read the reports that have arrived."""
        for seat in self._seats:
            try:
                if (report := seat.member.take()) is not None:
                    self._read(seat, report)
            except MemberLost as error:
                seat.report = replace(seat.report, failure=str(error))

    def _read(self, seat: _Seat, report: Report) -> None:
        seat.heard_s, seat.report = self._listened_s, replace(report, completions=())
        for completion in report.completions:
            # A request that was given to another member meanwhile, or dropped at the end of a pause, is not pending.
            given = seat.pending.get(completion.request.key)
            if given is not None and given.request.seed == completion.request.seed:
                del seat.pending[completion.request.key]
                # With our own request: the member's is a copy, and many completions would keep many of them.
                self._arrived.append((replace(completion, request=given.request), given.inside))

    def _replace_lost(self) -> None:
        for place, seat in enumerate(self._seats):
            if (loss := self._loss(seat)) is None:
                continue
            self.losses.append(loss)
            self.num_lost += 1
            seat.member.kill()
            if seat.report.by_user and not seat.newcomer:
                self._end = loss.reason
                raise RecipeError(loss.reason)
            self._check_limit(loss)
            self._lost_work += seat.report.work
            self._lost_eval_work += seat.report.eval_work
            self._lost_pace += seat.report.pace
            # In front: their groups are the oldest.
            self._waiting.extendleft(reversed(seat.pending.values()))
            self._seats[place] = self._newcomer(seat.number)

    def _loss(self, seat: _Seat) -> Loss | None:
        """Return why a member must be replaced; None if it need not be."""
        limits, report = self._limits, seat.report
        silent_s = self._listened_s - seat.heard_s
        if report.failure is not None:
            kind, reason = "died", report.failure
        elif not report.ready and self._listened_s - seat.started_s > limits.start_s:
            kind, reason = "start", f"it was not ready after {limits.start_s:g} s"
        elif not report.ready and silent_s > limits.silent_start_s:
            kind, reason = "start", f"it has not answered for {limits.silent_start_s:g} s, and is not ready yet"
        elif report.ready and silent_s > limits.silent_s:
            kind, reason = "silent", f"it has not answered for {limits.silent_s:g} s"
        elif report.ready and report.stuck_s > limits.stuck_s:
            kind, reason = "stuck", f"one call of its engine has taken more than {limits.stuck_s:g} s"
        else:
            return None
        reason = reason.strip().splitlines()[0] if reason.strip() else "no reason was given"
        return Loss(number=seat.number, kind=kind, reason=reason, num_requests=len(seat.pending))

    def _check_limit(self, loss: Loss) -> None:
        now, limits = self._clock(), self._limits
        while self._replaced_at and now - self._replaced_at[0] > limits.window_s:
            self._replaced_at.popleft()
        if len(self._replaced_at) >= limits.replacements:
            self._end = (
                f"generator {loss.number} was lost ({loss.reason}), after {len(self._replaced_at)} replacements of "
                f"generators within {limits.window_s / 60:g} minutes: the limit (rollout.max_replacements)"
            )
            raise EngineError(self._end)
        self._replaced_at.append(now)

    def _newcomer(self, number: int) -> _Seat:
        now_s, member = self._listened_s, self._launcher.start(number)
        seat = _Seat(number=number, member=member, started_s=now_s, heard_s=now_s, newcomer=True)
        if self._push is not None:
            seat.give(self._push)
        if self._paused:
            seat.give(Hold(paused=True))
        return seat

    def _assign(self) -> None:
        """Give all waiting requests to members, group by group, each to the one with the fewest."""
        able = [seat for seat in self._seats if seat.able]
        if not able or not self._waiting:
            return
        commands: dict[int, list[Command]] = {}
        for group in _groups(self._waiting):
            seat = min(able, key=lambda seat: len(seat.pending))
            seat.pending.update((given.request.key, given) for given in group)
            submit = Submit(requests=tuple(given.request for given in group), inside=group[0].inside)
            commands.setdefault(seat.number, []).append(submit)
        self._waiting.clear()
        for seat in able:
            if seat.number in commands:
                seat.give(*commands[seat.number])


def _groups(waiting: Iterable[_Given]) -> Iterator[list[_Given]]:
    """Yield the requests of each group that stand together."""
    group: list[_Given] = []
    for given in waiting:
        if group and (given.inside != group[0].inside or given.request.group != group[0].request.group):
            yield group
            group = []
        group.append(given)
    if group:
        yield group
