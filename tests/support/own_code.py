"""What a user would bring by import path: graders, with all that can go wrong in them, and tasks."""

import os
import time
from collections.abc import Iterator
from typing import Any

from scalerl.training.graders.rules import exact
from scalerl.training.graders.values import Score


def obedient(text: str, answer: str, /, **tags: str) -> bool | None:
    """Hangs, sleeps, dies, raises, takes its time or waits for the file `answer` when the text says so."""
    match text:
        case "hang":
            while True:
                pass
        case "sleep":
            time.sleep(3600)
        case "die":
            os._exit(3)
        case "raise":
            raise ArithmeticError("no such number")
        case "late":
            time.sleep(0.3)
        case "wait":
            while not os.path.exists(answer):
                time.sleep(0.01)
            return True
    return exact(text.replace("late", answer), answer, **tags)


def moody(text: str, answer: str, /, **tags: str) -> bool | None:
    """Breaks down over some problems, whatever is answered, and cannot read the reference of others."""
    match int(answer) % 8:
        case 0:
            os._exit(3)
        case 1:
            raise ArithmeticError("no such number")
        case 2:
            return None
        case 3:
            while True:
                pass
    return exact(text, answer, **tags)


def sums(*, largest: int = 12) -> Iterator[dict[str, Any]]:
    """Rows of a task of one's own."""
    for number in range(largest):
        yield {"prompt": f"{number}+1+2=", "answer": number + 3}


def five_vector_loss(log_probs, generator_log_probs, advantages, completion_of_token, trained):
    """A loss with a signature that is not that of a loss."""
    raise AssertionError


def infinite_loss(inputs):
    """A loss that is never finite."""
    from scalerl.training.rl.losses import cispo

    loss = cispo(inputs)
    return type(loss)(loss=loss.loss * float("nan"), ratio=loss.ratio, clipped=loss.clipped)


def bare_loss(inputs):
    """A loss that returns a tensor instead of a TokenLoss."""
    return -inputs.advantages * inputs.log_probs


def summed_loss(inputs):
    """A loss that returns its sum instead of a value per token."""
    from scalerl.training.rl.losses import cispo

    loss = cispo(inputs)
    return type(loss)(loss=loss.loss.sum(), ratio=loss.ratio, clipped=loss.clipped)


def misspelt_loss(inputs):
    """A loss that reads a field that its inputs do not have."""
    return -inputs.advantage * inputs.log_probs


def misshapen_weights(prompt_of_token, completion_of_token, trained):
    """Weights for more tokens than there are."""
    raise IndexError("no such token")


def wrong(text: str, answer: str, /) -> bool:
    """A grader that no answer satisfies."""
    return False


def broken() -> list[dict[str, Any]]:
    raise LookupError("the shelf is empty")


def never(text: str, answer: str, /) -> bool:
    raise KeyError(answer)


def share(text: str, answer: str, /) -> object:
    """Return the number in the text, or what it names: numpy's values, and what is no verdict."""
    import numpy as np

    named = {"yes": np.True_, "no": np.bool_(False), "half": np.float32(0.5), "one": 1, "nan": float("nan"), "list": []}
    return named[text] if text in named else float(text)


def half(text: str, answer: str, /) -> float:
    """A grader whose author meant 1."""
    return 0.5 if text == answer else 0.0


def integers(text: str, answer: str, /) -> bool:
    """A grader that can only read numbers, among them its references."""
    return int(text.replace("qzx", "0")) == int(answer)


def reply(text: str, answer: str, /) -> object:
    """A grader that returns a judge's reply instead of a verdict."""
    return {"verdict": text == answer}


def chatty(text: str, answer: str, /) -> bool:
    """A grader that reports to stderr, below Python's own streams."""
    os.write(2, f"judging {text}\n".encode())
    return text == answer


def brief(text: str, answer: str, /, *, most: int = 3) -> bool:
    return len(text) <= most


def keyed(text: str, answer: str, /, *, api_key: str = "", url: str = "", refuses: bool = False) -> bool:
    """A judge that needs a key; if it refuses, it says which key it was given."""
    if refuses:
        raise PermissionError(f"{api_key} may not judge")
    return text == answer


def named_outcome(text: str, answer: str) -> Score:
    """Name the outcome that the text asks for; "none" has no verdict."""
    return Score(value=None if text == "none" else 0.5, outcome=text)


def mute(text: str, answer: str, /) -> None:
    """A grader that never has a verdict."""
