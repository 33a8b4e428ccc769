"""The loop in the other process: what is answered, and what an object does between commands."""

import pickle
import threading
from collections import deque
from typing import Any

import pytest

from scalerl.errors import RecipeError
from scalerl.training.remote.serve import DriverGone, ObjectServer, RemoteFailure


class Counter:
    """An object that counts by itself up to a limit."""

    def __init__(self, limit: int = 0) -> None:
        self.limit, self.count = limit, 0

    def facts(self) -> str:
        return "facts"

    def add(self, num: int) -> int:
        self.limit += num
        return self.limit

    def advance(self, send: Any) -> bool:
        if self.count < self.limit:
            self.count += 1
            send("report", self.count)
        return self.count < self.limit

    def fail(self) -> None:
        raise ZeroDivisionError("by zero\nsecond line")

    def close(self) -> None: ...


class Idle:
    """An object that only obeys."""

    facts, close, fail = Counter.facts, Counter.close, Counter.fail


def twice(served: Any, value: int) -> tuple[Any, int]:
    return served, 2 * value


def messages(make: Any, *commands: tuple[Any, tuple[Any, ...]]) -> list[tuple[str, Any]]:
    """Return what is sent until the commands are used up; nobody answers then."""
    inbox, sent = deque(commands), []

    def receive(wait: bool) -> Any:
        if inbox and (wait or not isinstance(inbox[0], str)):
            return inbox.popleft()
        if wait:
            raise DriverGone
        return None

    try:
        ObjectServer(receive, lambda kind, value: sent.append((kind, value))).run(make)
    except DriverGone:
        sent.append(("gone", None))
    except Exception:
        assert sent[-1][0] == "error"
    return sent


def test_commands_are_answered_in_order_until_close():
    sent = messages(Idle, (twice, (3,)), ("close", ()), ("facts", ()))
    assert [kind for kind, _ in sent] == ["ready", "done", "closed"]
    assert sent[0][1] == "facts"
    served, value = sent[1][1]
    assert isinstance(served, Idle)
    assert value == 6


def test_object_works_by_itself_between_commands():
    sent = messages(lambda: Counter(2), ("add", (1,)), ("add", (1,)))
    assert sent == [
        ("ready", "facts"),
        ("done", 3),
        ("done", 4),
        *(("report", num) for num in range(1, 5)),
        ("gone", None),
    ]


def test_unexpected_failure_is_one_line_with_the_traceback_as_a_note():
    kind, error = messages(Idle, ("fail", ()))[-1]
    assert kind == "error"
    error = pickle.loads(pickle.dumps(error))
    assert isinstance(error, RemoteFailure)
    assert str(error) == "ZeroDivisionError: by zero second line"
    assert 'raise ZeroDivisionError("by zero' in error.__notes__[0]


@pytest.mark.parametrize("picklable", [True, False])
def test_mistake_of_the_user_keeps_its_sentence(picklable):
    def make() -> Any:
        error = RecipeError("no such model")
        if not picklable:
            error.lock = threading.Lock()  # pyright: ignore[reportAttributeAccessIssue]
        raise error

    kind, error = messages(make)[-1]
    assert (kind, str(pickle.loads(pickle.dumps(error)))) == ("error", "no such model")
    assert isinstance(error, RecipeError) == picklable
