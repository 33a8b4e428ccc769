"""The table of tasks by their names in recipes. task.py defines tasks; each kind has its own module."""

from collections.abc import Callable, Mapping

from scalerl.training.tasks.arithmetic import arithmetic
from scalerl.training.tasks.code import code
from scalerl.training.tasks.files import file, hub
from scalerl.training.tasks.gym import gym
from scalerl.training.tasks.programs import programs
from scalerl.training.tasks.task import Task

TASKS: Mapping[str, Callable[..., Task]] = {
    "arithmetic": arithmetic,
    "programs": programs,
    "code": code,
    "gym": gym,
    "file": file,
    "hub": hub,
}

FROM_ROWS = frozenset({"code", "file", "hub"})
"""Tasks whose problems are rows: if the number of evaluation problems is None, they use all rows."""
