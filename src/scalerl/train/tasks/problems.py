"""The table of tasks by their names in recipes. task.py defines tasks; each kind has its own module."""

from collections.abc import Callable, Mapping

from scalerl.train.tasks.arithmetic import arithmetic
from scalerl.train.tasks.code import code
from scalerl.train.tasks.countdown import countdown
from scalerl.train.tasks.files import file, hub
from scalerl.train.tasks.gym import gym
from scalerl.train.tasks.programs import programs
from scalerl.train.tasks.task import Task
from scalerl.train.tasks.words import words

TASKS: Mapping[str, Callable[..., Task]] = {
    "arithmetic": arithmetic,
    "countdown": countdown,
    "words": words,
    "programs": programs,
    "code": code,
    "gym": gym,
    "file": file,
    "hub": hub,
}

FROM_ROWS = frozenset({"code", "file", "hub"})
"""Tasks whose problems are rows: if the number of evaluation problems is None, they use all rows."""
