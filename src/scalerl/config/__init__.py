"""The recipe: every setting of a run in one frozen value, read from TOML with `extends` and `--set key=value`.

Nothing here imports torch, so a wrong setting fails in a fraction of a second, before anything heavy is loaded.
"""

from scalerl.config.load import changed_recipe, list_recipes, load_recipe, load_written, with_derived
from scalerl.config.parts import CustomSettings, Settings
from scalerl.config.recipe import (
    Recipe,
    body_dtype,
    code_outside,
    inert,
    mode_name,
    pushes_adapters,
    remedies,
    replaced,
    rounds_generator,
    trusting,
    value_at,
    vllm_code,
)
from scalerl.config.tree import AXES, Setting, differences, settings_of
from scalerl.errors import RecipeError

__all__ = [
    "AXES",
    "CustomSettings",
    "Recipe",
    "RecipeError",
    "Setting",
    "Settings",
    "body_dtype",
    "changed_recipe",
    "code_outside",
    "differences",
    "inert",
    "list_recipes",
    "load_recipe",
    "load_written",
    "mode_name",
    "pushes_adapters",
    "remedies",
    "replaced",
    "rounds_generator",
    "settings_of",
    "trusting",
    "value_at",
    "vllm_code",
    "with_derived",
]
