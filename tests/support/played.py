"""Environments without a model: tokens are numbers, and a text is its tokens as numbers with spaces between them."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from contracts.requests import make_request
from fake_engine import FakeEngine

from scalerl.recipe.parts import EnvironmentSettings
from scalerl.training.environments.protocol import Step
from scalerl.training.environments.steps import InProcess, Session
from scalerl.training.environments.turns import Playing, TurnsEngine
from scalerl.training.types import LengthPlan, Problem, Request, derive_seed

STOPS = tuple(range(0, 64, 7))
"""One token in seven ends a turn."""


def encode(text: str) -> list[int]:
    return [int(part) for part in text.split()]


def decode(tokens: Sequence[int]) -> str:
    return " ".join(map(str, tokens))


def observe(step: Step) -> list[int]:
    return encode(step.observation + " ".join(content for _, content in step.messages))


def opened(request: Request, step: Step) -> list[int]:
    return encode(step.messages[-1][1]) if step.messages else [*request.prompt_tokens, *encode(step.observation)]


class Echo:
    """Answers a turn with what depends on the turn and the seed, and ends after two to four of them."""

    def __init__(self, problem: Problem, seed: int, *, turns: int = 0) -> None:
        self._seed, self._turns_left = seed, turns or 2 + seed % 3

    def step(self, text: str) -> str | float:
        self._turns_left -= 1
        drawn = derive_seed("echo", self._seed, text)
        return decode([drawn % 64, drawn // 64 % 64]) if self._turns_left else drawn % 5 / 4


class Counting:
    """In the manner of gymnasium: rewards every turn, ends after `turns` of them."""

    closed = 0

    def __init__(self, turns: int = 3) -> None:
        self._turns = turns

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self._count = 0
        assert options is not None
        return f"7 {(seed or 0) % 64}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._count += 1
        return "9", 0.25, self._count == self._turns, False, {}

    def close(self) -> None:
        Counting.closed += 1


class Scripted:
    """Returns what it was given, in order; an exception is raised."""

    def __init__(self, problem: Problem, seed: int, *, returns: Sequence[Any]) -> None:
        self._returns = iter(returns)

    def step(self, text: str) -> Any:
        returned = next(self._returns)
        if isinstance(returned, Exception):
            raise returned
        return returned


class Slow(InProcess):
    """Steps that take a random number of polls."""

    def poll(self, timeout_s: float = 0.0) -> list[tuple[Any, Any]]:
        # Deterministic for a seed; a wait ends with something, as a pool's does after some time.
        drawn = random.Random(len(self.conversations) * 7919 + len(self._replies))
        some = [each for each in self._replies if timeout_s or drawn.random() < 0.2]
        self._replies = [each for each in self._replies if each not in some]
        return some


def playing(
    start: Any, settings: Mapping[str, Any] | None = None, *, where: type[InProcess] = InProcess, **rules: Any
) -> Playing:
    steps = where(Session(start, settings or {}))
    own = {"num_tokens": rules.pop("num_tokens")} if "num_tokens" in rules else {}
    chosen = EnvironmentSettings(name="own", **rules)
    return Playing(settings=chosen, steps=steps, observe=observe, opened=opened, **own)


def turns_engine(
    environments: Mapping[str, Playing], *, context: int = 400, slots: int = 8, inner: Any = None
) -> TurnsEngine:
    inner = inner or FakeEngine(slots=slots, stop_tokens=STOPS, seed=1)
    return TurnsEngine(inner, environments, decode=decode, context=context, slots=slots)


def request(number: int = 0, *, environment: str = "own", budget: int = 40, **changes: Any) -> Request:
    made = make_request(number, plan=LengthPlan(answer_budget=budget), seed=derive_seed("played", number))
    return replace(made, environment=environment, **changes)


def played_requests(num: int) -> list[Request]:
    return [request(number, budget=20) for number in range(num)]


def scripted(*returns: Any, **rules: Any) -> TurnsEngine:
    return turns_engine({"own": playing(Scripted, {"returns": returns}, **rules)})
