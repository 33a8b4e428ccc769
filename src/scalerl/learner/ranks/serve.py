"""The loop of a rank: obey commands in order and answer each, however commands and answers travel."""

import functools
import pickle
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from scalerl.errors import LearnerError, RunFailure, UserError
from scalerl.learner.ranks.rank import LearnerRank


class DriverGone(Exception):
    """The driver has ended: there is nobody left to answer."""


def obey(
    make: Callable[[], LearnerRank], rank: int, receive: Callable[[], bytes], answer: Callable[[str, Any], None]
) -> None:
    """Make a rank and obey pickled (command, arguments) until the command is "close".

    A command is the name of a method, or a function of a module that gets the rank first. The kinds of answers are
    "ready" (with RankFacts), "item" (of a command that yields), "done" (with the result) and "error". Whatever is
    raised is answered first, with the traceback as a note if it was not expected. But EOFError of `receive` means that
    the driver is gone: DriverGone.
    """
    try:
        with no_progress_bars():
            learner = make()
        answer("ready", learner.facts())
        while True:
            command, arguments = pickle.loads(_received(receive))
            act = getattr(learner, command) if isinstance(command, str) else functools.partial(command, learner)
            result = act(*arguments)
            if isinstance(result, Iterator):
                for item in result:
                    answer("item", item)
                result = None
            answer("done", result)
            if command == "close":
                return
    except DriverGone:
        raise
    except (UserError, RunFailure) as error:
        try:
            answer("error", error)
        except (pickle.PicklingError, TypeError, AttributeError):
            answer("error", LearnerError(str(error)))
        raise
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        failure = LearnerError(f"rank {rank} of the learner failed: {reason}")
        failure.add_note(traceback.format_exc())
        answer("error", failure)
        raise


def _received(receive: Callable[[], bytes]) -> bytes:
    try:
        return receive()
    except EOFError:
        raise DriverGone from None


@contextmanager
def no_progress_bars() -> Iterator[None]:
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
