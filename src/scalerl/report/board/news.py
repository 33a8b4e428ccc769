"""What is new in a look at a run, a log or a study: another decision, an alarm, an end. `watch --notify` posts it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from scalerl.report.board.look import Look, is_alarm
from scalerl.report.document import Json, Level

Key = tuple[str, ...]


@dataclass(slots=True)
class _Known:
    """What has been told of a source."""

    decision: tuple[Key, ...] = ()
    alarms: set[Key] = field(default_factory=set)
    status: str = ""


class News:
    """Sends what is new. The first look at a source is no news: it may be old."""

    def __init__(self, send: Callable[[str], None]) -> None:
        self._send = send
        self._known: dict[str, _Known] = {}

    def __call__(self, look: Look) -> None:
        row, is_first = look.row, look.row["key"] not in self._known
        known = self._known.setdefault(row["key"], _Known())
        for text in [*_decided(look, known), *_alarmed(look, known), *_ended(look, known)]:
            if not is_first:
                self._send(f"{row['name']}: {text}")


def _decided(look: Look, known: _Known) -> Iterator[str]:
    """Yield the answer where it is another one; numbers that moved make no other answer."""
    says = [each for each in _says(look) if each["level"] == Level.ANSWER]
    before, known.decision = known.decision, tuple(map(_key, says)) or known.decision
    if says and before != known.decision:
        yield " ".join(each["text"] for each in says)


def _alarmed(look: Look, known: _Known) -> Iterator[str]:
    """Yield new alarms of a run or a log; those of a study are those of its runs."""
    says = [each for each in _says(look) if is_alarm(each)] if look.row["kind"] in ("run", "log") else []
    before, known.alarms = known.alarms, {_key(each) for each in says}
    for each in says:
        if _key(each) not in before:
            yield f"Warning: {each['text']}"


def _ended(look: Look, known: _Known) -> Iterator[str]:
    before, known.status = known.status, look.row.get("status", "")
    if known.status != before and known.status in ("done", "failed", "stopped"):
        yield f"{known.status}: {look.row['reason']}".removesuffix(": ")


def _says(look: Look) -> Iterator[Json]:
    return (block for section in look.sections for block in section["blocks"] if block["type"] == "say")


def _key(each: Json) -> Key:
    """Return what makes a sentence another one: its kind, and the words among its values."""
    return each["kind"], *(value for _, value in sorted(each["values"].items()) if isinstance(value, str))
