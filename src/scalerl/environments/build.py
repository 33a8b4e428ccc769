"""From the settings of a recipe to environments that conversations can be held with."""

import functools
import inspect
from collections.abc import Mapping
from typing import Any

from scalerl.choose import entry, import_function
from scalerl.config.parts import EnvironmentSettings
from scalerl.environments.calculator import calculator
from scalerl.environments.protocol import Start
from scalerl.environments.steps import LocalSteps
from scalerl.environments.tools import Plain, Tools
from scalerl.environments.turns import Playing
from scalerl.errors import RecipeError
from scalerl.loop.requests import Text

ENVIRONMENTS: Mapping[str, Start] = {
    "calculator": functools.partial(Tools, tools={"calculator": calculator}, call_format=Plain()),
}


def build_playing(settings: EnvironmentSettings, text: Text) -> Playing:
    """Return the environment that a table of a recipe names; RecipeError says why it cannot be used."""
    start = load_environment(settings)
    return Playing(
        steps=LocalSteps(settings.name, start, settings.own),
        observe=text.encode,
        opens=text.encode,
        max_turns=settings.max_turns,
        max_tokens=settings.max_tokens,
        rewards=settings.rewards,
        reward_range=settings.reward_range,
    )


def load_environment(settings: EnvironmentSettings) -> Start:
    """Return the class or function of an environment, after checking that it takes the settings."""
    name, own = settings.name, settings.own
    start = import_function(name) if ":" in name else entry(ENVIRONMENTS, name, "the environment")
    has_reset = inspect.isclass(start) and hasattr(start, "reset")
    positional: tuple[Any, ...] = () if has_reset else (None, 0)
    try:
        inspect.signature(start).bind(*positional, **own)
    except TypeError as error:
        how = "Class(**settings) with reset(seed=...)" if has_reset else "environment(problem, seed, *, settings)"
        raise RecipeError(f'the environment "{name}" cannot be made as {how}: {error}') from None
    except ValueError:
        raise RecipeError(f'the environment "{name}" does not say which arguments it takes') from None
    if inspect.isclass(start) and not callable(getattr(start, "step", None)):
        raise RecipeError(f'the environment "{name}" has no method step(text)')
    return start
