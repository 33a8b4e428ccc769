"""An engine around another engine, whose completions are whole conversations. For the loop, it is like any engine.

    submit -> waiting -> start -> turn -> step -> turn -> step -> ... -> one Completion with its Episode
                         steps    engine  steps   engine  steps

The inner engine gets at most as many requests as it has slots, and turns of running conversations come before new
conversations. It is first come, first served: with more requests than slots, a second turn would wait for the first
turns of all other conversations, and its tokens would become old. Steps run while other turns are sampled.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from scalerl.recipe.import_path import one_line
from scalerl.recipe.parts import EnvironmentSettings
from scalerl.recipe.secrets import redact
from scalerl.training.environments.conversation import Conversation
from scalerl.training.environments.protocol import Step, Turn
from scalerl.training.environments.steps import Steps, read_reply
from scalerl.training.graders.supervisor import Reply
from scalerl.training.loop.seams import Engine
from scalerl.training.types import Completion, Episode, Request, Work, derive_seed

_WAIT_S = 0.02  # longest wait for a step while nothing is sampled


@dataclass(frozen=True, slots=True, kw_only=True)
class Playing:
    """An environment, and the settings of conversations with it."""

    settings: EnvironmentSettings
    steps: Steps
    observe: Callable[[Step], Sequence[int]]
    """Returns the tokens of a step's observation after a turn of the model."""
    opened: Callable[[Request, Step], Sequence[int]]
    """Returns the prompt of a conversation, including the opening observation."""
    num_tokens: float = math.inf
    """Size of the vocabulary; token ids from an environment must be below it."""
    first_errors: dict[str, str] = field(default_factory=dict)
    """The first error of the environment, by name."""

    def scale(self, rewards: Sequence[float]) -> tuple[float, float]:
        """Return (base, weight): the value of a conversation with a last reward x is base + weight * x.

        The value is the last reward, the sum of all or their mean, as a share of the range of rewards. `rewards` are
        the rewards of earlier turns.
        """
        earlier = sum(rewards)
        num = 1
        if self.settings.rewards == "last":
            earlier = 0.0
        elif self.settings.rewards == "mean":
            num = len(rewards) + 1
        low, high = self.settings.reward_range
        width = high - low
        return (earlier / num - low) / width, 1 / num / width


_Replied = tuple[Any, Reply, float]
"""The key of a conversation, a reply of its environment, and the time of the reply."""


@dataclass(slots=True)
class _Running:
    """A running conversation."""

    conversation: Conversation
    playing: Playing
    texts: list[Turn] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    submitted: float = 0.0
    """Time at which the last turn was sent to the environment."""
    episode: Episode = field(default_factory=Episode)
    """Counts so far."""

    @property
    def key(self) -> str:
        """The key that all turns of the conversation share."""
        return self.conversation.request.key

    def count(self, step: Step) -> None:
        self.episode = replace(
            self.episode,
            num_calls=self.episode.num_calls + step.num_calls,
            num_errors=self.episode.num_errors + step.num_errors,
            num_branches=self.episode.num_branches + step.restart,
        )


@dataclass(slots=True)
class _Underway:
    """Everything that a pause puts aside."""

    backlog: deque[Request] = field(default_factory=deque)
    running: dict[str, _Running] = field(default_factory=dict)
    """Conversations by key."""
    ready: deque[Request] = field(default_factory=deque)
    """Turns to be sampled."""
    arrived: list[_Replied] = field(default_factory=list)
    """Replies that arrived during a pause."""
    num_single: int = 0
    """Number of pending requests without an environment, which have a single turn."""
    num_starting: int = 0
    """Number of running conversations whose environment has not opened them yet."""
    num_sampling: int = 0
    """Number of requests in the inner engine."""


class TurnsEngine:
    """Holds conversations over an engine that samples single turns."""

    def __init__(
        self,
        engine: Engine,
        environments: Mapping[str, Playing],
        *,
        decode: Callable[[Sequence[int]], str],
        context: int,
        slots: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`environments` are by the name in requests; at most `slots` requests are in the inner engine at a time."""
        self._engine = engine
        self._environments = environments
        self._decode = decode
        self._context = context
        self._slots = slots
        self._clock = clock
        self._now = _Underway()
        self._held = _Underway()
        self.tool_s = 0.0
        """Seconds of all steps of environments outside pauses, whether or not something was sampled meanwhile."""
        self.slowest_s = 0.0
        """Seconds of the slowest step so far."""
        self.waited_s = 0.0
        """Seconds outside pauses in which nothing was sampled because all conversations waited for environments."""

    @property
    def version(self) -> int:
        return self._engine.version

    @property
    def num_pending(self) -> int:
        return len(self._now.backlog) + len(self._now.running) + self._now.num_single

    @property
    def work(self) -> Work:
        return self._engine.work

    @property
    def eval_work(self) -> Work:
        return self._engine.eval_work

    @property
    def first_errors(self) -> dict[str, str]:
        """The first exception of each environment that raised one."""
        errors: dict[str, str] = {}
        for playing in self._environments.values():
            errors |= playing.first_errors
        return {name: redact(error) for name, error in errors.items()}

    def submit(self, requests: Sequence[Request]) -> None:
        if unknown := {request.environment for request in requests} - {"", *self._environments}:
            raise ValueError(f'there is no environment "{min(unknown)}"')
        self._now.backlog.extend(requests)
        self._feed()

    def poll(self) -> list[Completion]:
        """Advance the engine and the environments; return the conversations that ended."""
        self._feed()
        ended: list[Completion | None] = []
        turns = self._engine.poll() if self._now.num_sampling else []
        for turn in turns:
            ended.append(self._sampled(turn))
        for key, reply, at in self._replies():
            ended.append(self._advanced(key, reply, at))
        self._feed()
        return [completion for completion in ended if completion is not None]

    def push_weights(self, weights: Mapping[str, Any], version: int) -> None:
        self._engine.push_weights(weights, version)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Put all conversations aside. Replies to their steps that arrive meanwhile are handled afterwards."""
        self._held = self._now
        self._now = _Underway()
        tool_s = self.tool_s
        waited_s = self.waited_s
        try:
            with self._engine.paused():
                yield
        finally:
            self.tool_s = tool_s
            self.waited_s = waited_s
            for running in self._now.running.values():
                running.playing.steps.end(running.key)
            self._now = self._held
            self._held = _Underway()

    def close(self) -> None:
        for playing in self._environments.values():
            playing.steps.close()
        self._engine.close()

    def _feed(self) -> None:
        """Submit as many turns as the engine has slots: first ready turns, then first turns of new conversations."""
        now = self._now
        while now.backlog and self._may_begin():
            self._begin(now.backlog.popleft())
        num = min(self._slots - now.num_sampling, len(now.ready))
        if num > 0:
            self._engine.submit([now.ready.popleft() for _ in range(num)])
            now.num_sampling += num

    def _may_begin(self) -> bool:
        """Return whether one more conversation may begin."""
        now = self._now
        num_with_slots = now.num_sampling + len(now.ready) + now.num_starting
        # Each conversation may have a process, so at most as many may wait for steps as are being sampled.
        return num_with_slots < self._slots and len(now.running) < 2 * self._slots

    def _begin(self, request: Request) -> None:
        if not request.environment:
            self._now.ready.append(request)
            self._now.num_single += 1
            return
        running = _Running(Conversation(request), self._environments[request.environment])
        self._now.running[running.key] = running
        self._now.num_starting += 1
        self._submit_step(running)

    def _submit_step(self, running: _Running) -> None:
        """Send the last turn to the environment, or, at the beginning, the problem and the seed of its group."""
        running.submitted = self._clock()
        message: Any
        if running.texts:
            message = running.texts[-1]
        else:
            request = running.conversation.request
            message = (request.problem, derive_seed("environment", request.group))
        running.playing.steps.tell(running.key, message)
        # Read replies now: a step in this process is done, and its time must not include other steps.
        self._hear(running.playing.steps)
        # Such a step also keeps the engine waiting.
        self.waited_s += self._clock() - running.submitted

    def _hear(self, steps: Steps, wait_s: float = 0.0) -> None:
        """Store the replies of environments with their times."""
        for key, reply in steps.poll(wait_s):
            # The conversation may be put aside.
            for underway in (self._now, self._held):
                if key in underway.running:
                    underway.arrived.append((key, reply, self._clock()))

    def _replies(self) -> list[_Replied]:
        """Return the replies of environments; if there is nothing else to do, wait a moment for one."""
        is_idle = not (self._now.arrived or self._now.num_sampling or self._now.ready)
        wait_s = _WAIT_S if is_idle else 0.0
        started = self._clock()
        for playing in self._environments.values():
            if playing.steps.num_pending:
                self._hear(playing.steps, wait_s)
        if is_idle:
            self.waited_s += self._clock() - started
        arrived = self._now.arrived
        self._now.arrived = []
        return arrived

    def _sampled(self, turn: Completion) -> Completion | None:
        """Handle a sampled turn; return the conversation if the turn ends it."""
        self._now.num_sampling -= 1
        running = self._now.running.get(turn.request.key)
        if running is None:
            self._now.num_single -= 1
            return turn
        running.conversation.take(turn)
        if turn.truncated:
            # A truncated turn may contain half a call, so it is not executed.
            return self._end(running, 0.0, truncated=True)
        text = Turn(self._decode(turn.tokens.tolist()))
        text.tokens = turn.tokens.tolist()
        text.log_probs = turn.log_probs.tolist()
        running.texts.append(text)
        self._submit_step(running)
        return None

    def _advanced(self, key: str, reply: Reply, at: float) -> Completion | None:
        """Continue after a step; return the conversation if the step ends it."""
        running = self._now.running[key]
        step_s = at - running.submitted
        self.tool_s += step_s
        self.slowest_s = max(self.slowest_s, step_s)
        step, reason, error = read_reply(reply)
        is_opening = not running.texts
        if is_opening:
            self._now.num_starting -= 1
        running.count(step)
        if not reason and step.done and is_opening:
            # Without a turn of the model, there is nothing to learn from.
            reason = "no_answer"
        if reason:
            return self._fail(running, reason, error)
        if step.done:
            reward = step.reward
            if step.truncated and step.answer is None:
                # Cut short: no reward is one of 0, not a missing verdict.
                reward = reward or 0.0
            return self._end(running, reward, answer=step.answer, truncated=step.truncated)
        if len(running.texts) >= running.playing.settings.max_turns:
            return self._end(running, step.reward or 0.0, truncated=True)
        if step.reward is not None and not is_opening:
            running.rewards.append(step.reward)
        return self._go_on(running, step, has_new_prompt=is_opening or step.restart)

    def _go_on(self, running: _Running, step: Step, *, has_new_prompt: bool) -> Completion | None:
        """Submit the turn after an observation; end the conversation if there is no room for both."""
        conversation = running.conversation
        prompt: Sequence[int] = ()
        observed: Sequence[int] = ()
        try:
            if has_new_prompt:
                prompt = _prompt(running, step)
            else:
                observed = _own_tokens(running, step) or running.playing.observe(step)
        except Exception as error:
            # Also a chat template may reject the observation.
            return self._fail(running, "error", one_line(error))
        if has_new_prompt:
            conversation.open(prompt)
        max_tokens = running.playing.settings.max_tokens
        room = conversation.room(len(observed), context=self._context, max_tokens=max_tokens)
        if room >= 1:
            conversation.observe(observed)
            self._now.ready.append(conversation.next_request(room))
            return None
        if has_new_prompt:
            return self._fail(
                running, "error", f"its opening leaves no room in rollout.context = {self._context:,} tokens"
            )
        return self._end(running, 0.0, truncated=True)

    def _fail(self, running: _Running, reason: str, error: str = "") -> Completion:
        """End a conversation whose environment failed. If it has no tokens, add one, which is never trained."""
        if error:
            running.playing.first_errors.setdefault(running.playing.settings.name, error)
        if not running.conversation.tokens:
            running.conversation.observe([running.conversation.request.prompt_tokens[-1]], version=self.version)
        return self._end(running, None, reason=reason)

    def _end(
        self,
        running: _Running,
        reward: float | None,
        *,
        answer: str | None = None,
        reason: str | None = None,
        truncated: bool = False,
    ) -> Completion:
        """End a conversation: with a last reward, with an answer for graders, or without a verdict."""
        base, weight = running.playing.scale(running.rewards)
        value = None
        if reward is not None:
            value = min(max(base + weight * reward, 0.0), 1.0)
        if value is None and answer is None:
            reason = reason or "no_answer"
        running.playing.steps.end(running.key)
        del self._now.running[running.key]
        episode = replace(running.episode, value=value, answer=answer, base=base, weight=weight, reason=reason)
        finish = "length" if truncated else "stop"
        return running.conversation.completion(finish=finish, episode=episode)


def _own_tokens(running: _Running, step: Step) -> Sequence[int]:
    """Return the tokens that the environment itself gives; empty if its observation is a text."""
    largest = max(step.tokens, default=0)
    if largest >= running.playing.num_tokens:
        raise ValueError(f"token {largest} is not among the model's {running.playing.num_tokens:,}")
    return step.tokens


def _prompt(running: _Running, step: Step) -> Sequence[int]:
    """Return the prompt with which a conversation begins, or begins again."""
    request = running.conversation.request
    prompt = _own_tokens(running, step) or running.playing.opened(request, step)
    if request.hint_tokens and tuple(prompt) != request.prompt_tokens:
        raise ValueError("it begins with a prompt of its own, and kl.reference.hint is for that of the problem")
    return prompt
