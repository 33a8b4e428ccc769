"""Turn pydantic's validation errors into problems that the author of a recipe can act on.

A problem names the file or option that set the key, the key, its value, what it must be instead, and a suggestion.
`problems_of` is the entry; `Origins` remembers which layer set which key.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic_core import ErrorDetails

from scalerl.errors import RecipeProblem
from scalerl.recipe.keys import Tree, dotted, is_at
from scalerl.recipe.parts import Settings
from scalerl.recipe.recipe import Recipe
from scalerl.recipe.suggest import closest, did_you_mean, quoted, show
from scalerl.recipe.tree import AXES, known_keys, names_of, table_class

# Settings that do not exist on purpose, and messages for users who try to set them.
_HINTS = {
    "rollout.top_p": "rollout.top_p cannot be set: the log-probs that training divides by would not be those of the "
    "sampled distribution; top_p is for evaluation only (evaluation.top_p)",
    "extends": 'extends cannot be set here: it belongs in the first line of a recipe file (extends = "scalerl")',
}

# Names of methods in other frameworks, and the settings for them here.
_MADE_OF = {
    "grpo": 'GRPO is loss = "dapo" with loss.clip_low = loss.clip_high = 0.2, or the recipe grpo',
    "ppo": 'PPO\'s clip is loss = "dapo" with loss.clip_low = loss.clip_high = 0.2',
    "reinforce": 'REINFORCE with a capped ratio is loss = "cispo"; with pipeline.max_lag = 0 the ratio is 1',
    "rloo": 'RLOO is advantage.baseline = "leave_one_out" with loss = "cispo"',
    "npr": 'NPR is curriculum = "no_positive_resampling"',
}

# Names of settings in other frameworks that are too different to be found by similarity.
_ALIASES = {
    "batch_size": "pipeline.groups_per_batch",
    "group_size": "pipeline.completions_per_group",
    "num_generations": "pipeline.completions_per_group",
    "learning_rate": "optimizer.lr",
    "max_grad_norm": "optimizer.grad_clip",
    "max_steps": "budget.steps",
    "max_tokens": "length.max_length",
}

_WORDS = {
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid string": "text",
    "a valid boolean": "true or false",
    "a valid tuple": "a list",
    "a valid list": "a list",
    "a valid dictionary": "a table",
    "List should have": "a list with",
    "Tuple should have": "a list with",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "above",
    "less than": "below",
    "True": "true",
    "False": "false",
    "'": '"',
}
"""pydantic's names of types and conditions, and the words that the author of a TOML file knows."""

_IMPORT_PATH = 'an import path "package.module:function"'


class Origins:
    """The file or --set from which each key of a merged recipe comes."""

    def __init__(self) -> None:
        self.otherwise = ""
        """The origin to name if no layer has set a key."""
        self._layers: list[tuple[str, Sequence[str]]] = []

    def add(self, label: str, keys: Sequence[str]) -> None:
        """Add a layer; `label` names it in messages."""
        self._layers.append((label, keys))

    def label(self, *keys: str) -> str:
        """Return the latest layer that set one of these keys, or else one of their tables, or else `otherwise`."""
        for label, set_keys in reversed(self._layers):
            if any(is_at(key, own) or is_at(own, key) for own in set_keys for key in keys):
                return label
        tables = [key.rpartition(".")[0] for key in keys if "." in key]
        return self.label(*tables) if tables else self.otherwise


def problems_of(error: ErrorDetails, tree: Tree, origins: Origins) -> Iterator[RecipeProblem]:
    """Yield the problems of a pydantic error; it may contain several conflicts."""
    if error["type"] == "conflict":
        for keys, sentence in error.get("ctx", {})["conflicts"]:
            yield RecipeProblem(origin=origins.label(*keys), statement=sentence)
        return
    key, statement, suggestion = described(error, tree)
    if key in _HINTS:
        statement = _HINTS[key]
        suggestion = ""
    yield RecipeProblem(origin=origins.label(key), statement=statement, suggestion=suggestion)


def described(error: ErrorDetails, tree: Tree, root: type[Settings] = Recipe) -> tuple[str, str, str]:
    """Return the key of an error, a statement about its value in `tree`, and a suggestion or ""."""
    kind = error["type"]
    key = _dotted_key(error["loc"])
    if kind == "extra_forbidden":
        return key, *_unknown_key(key, tree, root)
    if kind == "missing":
        return key, f"{key} is not set, but {_owner(key.rpartition('.')[0], tree, root)} needs it", ""
    if kind == "union_tag_invalid":
        return f"{key}.name", *_unknown_choice(key, _at(tree, f"{key}.name"))
    expected, suggestion = _expected(error, key, tree, root)
    return key, f"{key} is {show(error['input'])} but must be {expected}", suggestion


def _unknown_choice(axis: str, name: Any) -> tuple[str, str]:
    """Return a statement about a name that an axis does not have, and a suggestion."""
    statement = f"{axis}.name is {show(name)} but must be one of {quoted(AXES[axis])}, or {_IMPORT_PATH}"
    if made_of := _MADE_OF.get(str(name).lower()):
        return statement, f"; {made_of}"
    return statement, did_you_mean(str(name), AXES[axis])


def _expected(error: ErrorDetails, key: str, tree: Tree, root: type[Settings]) -> tuple[str, str]:
    """Return what a value must be, and a suggestion or ""."""
    kind = error["type"]
    value = error["input"]
    if kind == "string_pattern_mismatch":
        return _IMPORT_PATH, ""
    if kind.startswith("model_") and key in AXES:
        return f"a name or a table with one; the names are {quoted(AXES[key])}", ""
    if kind.startswith("model_"):
        names = _names(key, tree, root)
        below = [axis for axis, choices in AXES.items() if axis.startswith(f"{key}.") and value in [*choices]]
        expected = f"a table with {', '.join(names)}" if names else "a table"
        if below:
            return expected, f"; did you mean {below[0]} = {show(value)}?"
        return expected, ""
    expected = error["msg"].removeprefix("Input should be ")
    for word, ours in _WORDS.items():
        expected = expected.replace(word, ours)
    if kind == "literal_error":
        return expected, did_you_mean(str(value), re.findall('"(.*?)"', expected))
    return expected, ""


def _dotted_key(loc: Sequence[int | str]) -> str:
    """Return the key as a user writes it, without pydantic's marks for the choices of an axis."""
    key = ""
    parts = list(loc)
    while parts:
        part = parts.pop(0)
        if key in AXES and part == "built-in":
            # The name of the choice comes after the mark.
            parts = parts[1:]
        elif not (key in AXES and part == "custom"):
            key = dotted(key, str(part))
    return key


def _at(tree: Any, key: str) -> Any:
    """Return the value at a dotted key of a tree, or None."""
    for name in key.split("."):
        tree = tree.get(name) if isinstance(tree, Mapping) else None
    return tree


def _names(table: str, tree: Tree, root: type[Settings]) -> list[str]:
    """Return the settings of the table at a key; those of an axis depend on its name in `tree`."""
    settings_class = root
    key = ""
    for name in table.split(".") if table else []:
        key = dotted(key, name)
        field = settings_class.model_fields.get(name)
        if key in AXES:
            inner = AXES[key][_at(tree, f"{key}.name")]
        else:
            inner = field and table_class(field)
        if inner is None:
            return []
        settings_class = inner
    return names_of(settings_class)


def _owner(table: str, tree: Tree, root: type[Settings]) -> str:
    """Return the name of a setting's table for messages: its key, or the chosen name of an axis."""
    if table not in AXES:
        return table or {"Recipe": "a recipe", "Study": "a study"}.get(root.__name__, "the table")
    return f'{table}.name = "{_at(tree, f"{table}.name")}"'


def _unknown_key(key: str, tree: Tree, root: type[Settings]) -> tuple[str, str]:
    """Return a statement about a key that does not exist, and a suggestion or ""."""
    table, _, name = key.rpartition(".")
    owner = _owner(table, tree, root)
    settings = _names(table, tree, root)
    own = [setting for setting in settings if setting != "name" or table not in AXES]
    has = f"which has {', '.join(own) or 'no settings'}"
    if owners := [choice for choice, part in AXES.get(table, {}).items() if name in part.model_fields]:
        return f"{key} is a setting of {quoted(owners)}, but {owner.replace(' = ', ' is ')}, {has}", ""
    return f"{key} is not a setting of {owner}, {has}", _meant(name, settings, root)


def _meant(name: str, settings: Sequence[str], root: type[Settings]) -> str:
    """Suggest what an unknown name means: a setting of the same table, a known alias, or a setting of another table."""
    aliases = _ALIASES if root is Recipe else {}
    if name not in aliases and (own := did_you_mean(name, settings)):
        return own
    # Of settings with the same name, the first counts. The cutoff is higher than in a table: there are many keys.
    keys = {key.rpartition(".")[2]: key for key in reversed(known_keys(root)) if not key.endswith("name")}
    close = closest(name, keys, cutoff=0.75)
    key = aliases.get(name) or (keys[close] if close else None)
    return f'; did you mean "{key}"?' if key else ""
