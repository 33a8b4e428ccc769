"""What is new in a snapshot: another decision, an alarm, an end. `watch --notify` posts it."""

from collections.abc import Callable
from dataclasses import dataclass

from scalerl.forecast.report.board.snapshot import Snapshot, is_alarm
from scalerl.forecast.report.document import Level, Say, says
from scalerl.forecast.report.runs import ENDED

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Known:
    """What has been told of a source."""

    decision: tuple[Key, ...]
    alarms: frozenset[Key]
    status: str


class News:
    """Sends what is new. The first snapshot of a source is no news: it may be old."""

    def __init__(self, send: Callable[[str], None]) -> None:
        self._send = send
        self._known: dict[str, Known] = {}

    def __call__(self, snapshot: Snapshot) -> None:
        key = snapshot.source.key
        sentences = list(says(snapshot.document))
        answers = [each for each in sentences if each.level == Level.ANSWER]
        # The alarms of a study are those of its runs.
        is_run = snapshot.source.kind in ("run", "log")
        alarms = [each for each in sentences if is_run and is_alarm(each)]
        before = self._known.get(key)
        # Numbers that moved make no other decision, and a snapshot without an answer forgets none.
        decision = tuple(map(_key, answers))
        if not decision and before is not None:
            decision = before.decision
        self._known[key] = Known(decision, frozenset(map(_key, alarms)), snapshot.status)
        if before is None:
            return
        news: list[str] = []
        if decision != before.decision:
            news.append(" ".join(each.text for each in answers))
        news += [f"Warning: {each.text}" for each in alarms if _key(each) not in before.alarms]
        if snapshot.status != before.status and snapshot.status in ENDED:
            news.append(snapshot.state)
        for text in news:
            self._send(f"{snapshot.source.name}: {text}")


def _key(each: Say) -> Key:
    """Return what makes a sentence another one: its kind, and the words among its values."""
    return each.kind, *(value for _, value in sorted(each.values.items()) if isinstance(value, str))
