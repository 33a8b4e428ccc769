"""What is new in a look at a run, a log or a study: another decision, an alarm, an end. `watch --notify` posts it."""

from collections.abc import Callable
from dataclasses import dataclass, field

from scalerl.forecast.report.board.look import Look, is_alarm
from scalerl.forecast.report.document import Level, Say, says

Key = tuple[str, ...]
ENDS = ("done", "failed", "stopped")


@dataclass(frozen=True, slots=True)
class Known:
    """What has been told of a source."""

    decision: tuple[Key, ...] = ()
    alarms: frozenset[Key] = field(default_factory=frozenset)
    status: str = ""


class News:
    """Sends what is new. The first look at a source is no news: it may be old."""

    def __init__(self, send: Callable[[str], None]) -> None:
        self._send = send
        self._known: dict[str, Known] = {}

    def __call__(self, look: Look) -> None:
        row = look.row
        said = [*says(look.document)]
        answers = [each for each in said if each.level == Level.ANSWER]
        # The alarms of a study are those of its runs.
        alarms = [each for each in said if is_alarm(each)] if row["kind"] in ("run", "log") else []
        is_first, before = row["key"] not in self._known, self._known.get(row["key"], Known())
        # Numbers that moved make no other decision, and a look without an answer forgets none.
        now = Known(tuple(map(_key, answers)) or before.decision, frozenset(map(_key, alarms)), row.get("status", ""))
        self._known[row["key"]] = now
        news = [" ".join(each.text for each in answers)] if now.decision != before.decision else []
        news += [f"Warning: {each.text}" for each in alarms if _key(each) not in before.alarms]
        if now.status != before.status and now.status in ENDS:
            news.append(f"{now.status}: {row['reason']}".removesuffix(": "))
        for text in () if is_first else news:
            self._send(f"{row['name']}: {text}")


def _key(each: Say) -> Key:
    """Return what makes a sentence another one: its kind, and the words among its values."""
    return each.kind, *(value for _, value in sorted(each.values.items()) if isinstance(value, str))
