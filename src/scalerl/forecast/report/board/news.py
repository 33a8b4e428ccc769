"""What is new in a look at a run, a log or a study: another decision, an alarm, an end. `watch --notify` posts it."""

from collections.abc import Callable
from dataclasses import dataclass

from scalerl.forecast.report.board.look import Look, is_alarm
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
    """Sends what is new. The first look at a source is no news: it may be old."""

    def __init__(self, send: Callable[[str], None]) -> None:
        self._send = send
        self._known: dict[str, Known] = {}

    def __call__(self, look: Look) -> None:
        key = look.source.key
        sentences = list(says(look.document))
        answers = [each for each in sentences if each.level == Level.ANSWER]
        # The alarms of a study are those of its runs.
        is_run = look.source.kind in ("run", "log")
        alarms = [each for each in sentences if is_run and is_alarm(each)]
        before = self._known.get(key)
        # Numbers that moved make no other decision, and a look without an answer forgets none.
        decision = tuple(map(_key, answers))
        if not decision and before is not None:
            decision = before.decision
        self._known[key] = Known(decision, frozenset(map(_key, alarms)), look.status)
        if before is None:
            return
        news: list[str] = []
        if decision != before.decision:
            news.append(" ".join(each.text for each in answers))
        news += [f"Warning: {each.text}" for each in alarms if _key(each) not in before.alarms]
        if look.status != before.status and look.status in ENDED:
            news.append(f"{look.status}: {look.reason}" if look.reason else look.status)
        for text in news:
            self._send(f"{look.source.name}: {text}")


def _key(each: Say) -> Key:
    """Return what makes a sentence another one: its kind, and the words among its values."""
    return each.kind, *(value for _, value in sorted(each.values.items()) if isinstance(value, str))
