"""Environments that runs of tests name by import path; tiny-base can read what they say, but for Wordy."""

from scalerl.training.environments.protocol import Step
from scalerl.training.types import Problem, derive_seed


class Nudge:
    """Answers the first turn with a number and leaves the second to the task's grader."""

    def __init__(self, problem: Problem, seed: int, *, most: int = 9) -> None:
        self._seed, self._most, self._num = seed, most, 0

    def step(self, text: str) -> str | Step:
        self._num += 1
        if self._num == 1:
            return f"{derive_seed('nudge', self._seed) % self._most}+"
        return Step(done=True, answer=text, num_calls=1)


class Wordy(Nudge):
    """The same in words, of which tiny-base knows none."""

    def step(self, text: str) -> str | Step:
        answered = super().step(text)
        return "Write a number." if isinstance(answered, str) else answered


class Broken:
    def __init__(self, problem: Problem, seed: int) -> None:
        pass

    def step(self, text: str) -> str:
        raise RuntimeError("broken on purpose")
