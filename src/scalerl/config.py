"""Every setting of a run: the public names of scalerl.recipe."""

from scalerl.errors import RecipeError
from scalerl.recipe.effects import inert
from scalerl.recipe.load import changed_recipe, list_recipes, load_recipe, load_written, with_derived
from scalerl.recipe.parts import CustomSettings, Settings
from scalerl.recipe.recipe import (
    Recipe,
    body_dtype,
    code_outside,
    mode_name,
    pushes_adapters,
    remedies,
    replaced,
    rounds_generator,
    trusting,
    value_at,
    vllm_code,
)
from scalerl.recipe.tree import AXES, Setting, differences, settings_of

__all__ = [
    "AXES", "CustomSettings", "Recipe", "RecipeError", "Setting", "Settings", "body_dtype", "changed_recipe",
    "code_outside", "differences", "inert", "list_recipes", "load_recipe", "load_written", "mode_name",
    "pushes_adapters", "remedies", "replaced", "rounds_generator", "settings_of", "trusting", "value_at", "vllm_code",
    "with_derived",
]  # fmt: skip
