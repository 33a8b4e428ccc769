"""Validation errors as problems of a recipe: where each came from, the field, the value, the choices, a suggestion."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic_core import ErrorDetails

from scalerl.config.keys import dotted
from scalerl.config.parts import Settings
from scalerl.config.recipe import Recipe
from scalerl.config.suggest import closest, did_you_mean, quoted
from scalerl.config.tree import AXES, known_keys, names_of, table_class
from scalerl.errors import RecipeProblem

# Settings that people look for and that are left out deliberately.
_HINTS = {
    "rollout.top_p": "rollout.top_p cannot be set: the log-probs that training divides by would not be those of the "
    "sampled distribution; top_p is for evaluation only (evaluation.top_p)",
    "model.trust_remote_code": "model.trust_remote_code cannot be set in a recipe: code that comes with a model runs "
    "only if you say so each time, with --trust-remote-code (trust_remote_code=True in Python)",
    "extends": 'extends cannot be set here: it belongs into a recipe file, as its first line (extends = "scalerl")',
}

# Names that other frameworks use, and how to get the same thing here.
_MADE_OF = {
    "grpo": 'GRPO is loss = "dapo" with loss.clip_low = loss.clip_high = 0.2, or the recipe grpo',
    "ppo": 'PPO\'s clip is loss = "dapo" with loss.clip_low = loss.clip_high = 0.2',
    "reinforce": 'REINFORCE with a capped ratio is loss = "cispo"; with pipeline.max_lag = 0 the ratio is 1',
    "rloo": 'RLOO is advantage.baseline = "leave_one_out" with loss = "cispo"',
    "npr": 'NPR is curriculum = "no_positive_resampling"',
}

# What other frameworks call a setting, where the spelling is too different to be found by similarity.
_ALIASES = {
    "batch_size": "pipeline.groups_per_batch",
    "group_size": "pipeline.completions_per_group",
    "num_generations": "pipeline.completions_per_group",
    "learning_rate": "optimizer.lr",
    "max_grad_norm": "optimizer.grad_clip",
    "max_steps": "budget.steps",
    "max_tokens": "length.max_length",
}

_KINDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "finite_number": "a finite number",
    "dict_type": "a table",
    "tuple_type": "a list",
    "list_type": "a list",
    "too_short": "a list that is not empty",
    "string_pattern_mismatch": 'an import path "package.module:function"',
}
"""What a setting must be, by the type of pydantic's error."""

_TABLE_ERRORS = ("model_type", "model_attributes_type")

_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "above"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "below"),
}


class Origins:
    """Which file or --set each key of a merged recipe came from."""

    def __init__(self) -> None:
        self.otherwise = ""
        """What is named where no layer has set a key."""
        self._labels: list[str] = []
        self._layer_of: dict[str, int] = {}

    def add(self, label: str, keys: Sequence[str]) -> None:
        """Add a layer; `label` names it in messages."""
        self._labels.append(label)
        self._layer_of.update(dict.fromkeys(keys, len(self._labels) - 1))

    def label(self, *keys: str) -> str:
        """Return the latest layer that set one of these keys; otherwise one of their tables; otherwise the file."""
        layers = [
            layer
            for set_key, layer in self._layer_of.items()
            for key in keys
            if set_key == key or set_key.startswith(f"{key}.") or key.startswith(f"{set_key}.")
        ]
        if layers:
            return self._labels[max(layers)]
        tables = [key.rpartition(".")[0] for key in keys if "." in key]
        return self.label(*tables) if tables else self.otherwise


def show(value: Any) -> str:
    """Return a value as JSON, cut where it is long."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def wrong_names(tree: Mapping[str, Any], origins: Origins) -> Iterator[RecipeProblem]:
    """Yield a problem for each axis whose name is not one of its choices, and for a setting that no file may have."""
    model = tree.get("model")
    if isinstance(model, Mapping) and (key := "model.trust_remote_code").rpartition(".")[2] in model:
        yield RecipeProblem(origin=origins.label(key), statement=_HINTS[key])
    for key, choices in AXES.items():
        table: Any = tree
        for name in key.split("."):
            table = table.get(name, {}) if isinstance(table, Mapping) else {}
        name = table.get("name") if isinstance(table, Mapping) else None
        if name is not None and not (isinstance(name, str) and (":" in name or name in choices)):
            made_of = _MADE_OF.get(str(name).lower())
            yield RecipeProblem(
                origin=origins.label(f"{key}.name"),
                statement=f"{key}.name is {show(name)} but must be one of {quoted(choices)}, or an import path "
                f'"package.module:function"',
                suggestion=f"; {made_of}" if made_of else did_you_mean(str(name), choices),
            )


def problems_of(error: ErrorDetails, tree: Mapping[str, Any], origins: Origins) -> Iterator[RecipeProblem]:
    """Yield the problems that one pydantic error reports; several when it holds several conflicts."""
    if error["type"] == "conflict":
        for keys, sentence in error.get("ctx", {})["conflicts"]:
            yield RecipeProblem(origin=origins.label(*keys), statement=sentence)
        return
    key, statement, suggestion = described(error, tree)
    if key in _HINTS:
        statement, suggestion = _HINTS[key], ""
    yield RecipeProblem(origin=origins.label(key), statement=statement, suggestion=suggestion)


def _dotted_key(loc: Sequence[int | str]) -> str:
    """Return the key as a user wrote it, without pydantic's marks of which choice of an axis it tried."""
    key, parts = "", list(loc)
    while parts:
        part = parts.pop(0)
        if key in AXES and part == "built-in":
            parts = parts[1:]
        elif not (key in AXES and part == "custom"):
            key = dotted(key, str(part))
    return key


def described(error: ErrorDetails, tree: Mapping[str, Any], root: type[Settings] = Recipe) -> tuple[str, str, str]:
    """Return a key of `tree`, what is wrong with its value, and a suggestion (empty where there is none)."""
    key = _dotted_key(error["loc"])
    return key, *_described(error, key, tree, root)


def _described(error: ErrorDetails, key: str, tree: Mapping[str, Any], root: type[Settings]) -> tuple[str, str]:
    kind, value = error["type"], show(error["input"])
    table, _, name = key.rpartition(".")
    if kind == "extra_forbidden":
        return _unknown_key(key, tree, root)
    if kind in _TABLE_ERRORS and key in AXES:
        return f"{key} is {value} but must be a name or a table with one; the names are {quoted(AXES[key])}", ""
    if kind in _TABLE_ERRORS:
        fields, suggestion = _fields(key, error["input"], root)
        return f"{key} is {value} but must be a table{fields}", suggestion
    if kind == "missing":
        return f"{key} is not set, and {_owner(table, tree, root)} needs it", ""
    if kind == "literal_error":
        # The place of an entry in a list is not part of the setting's name.
        *tables, name = [part for part in key.split(".") if not (part.isdigit() and int(part) in error["loc"])]
        choices = list(_literals(_class_at(".".join(tables), tree, root).model_fields[name].annotation))
        statement = f"{key} is {value} but must be one of {', '.join(map(show, choices))}"
        return statement, did_you_mean(str(error["input"]), [choice for choice in choices if isinstance(choice, str)])
    if kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        return f"{key} is {value} but must be {words} {error.get('ctx', {})[bound]}", ""
    if kind in _KINDS:
        return f"{key} is {value} but must be {_KINDS[kind]}", ""
    return f"{key} is {value}: {error['msg'][0].lower()}{error['msg'][1:]}", ""


def _literals(annotation: Any) -> Iterator[str | bool]:
    for argument in get_args(annotation):
        if get_origin(annotation) is Literal:
            yield argument
        else:
            yield from _literals(argument)


def _class_at(table: str, tree: Mapping[str, Any], root: type[Settings]) -> type[Settings]:
    """Return the class of the table at this key, by the names its axes have in `tree`."""
    part, value, key = root, tree, ""
    for name in table.split(".") if table else []:
        key, value = dotted(key, name), value[name]
        part = AXES[key][value["name"]] if key in AXES else (table_class(part.model_fields[name]) or part)
    return part


def _fields(key: str, value: Any, root: type[Settings]) -> tuple[str, str]:
    """Return what the table at this key holds, and which of its settings the given value may have been meant for."""
    part: type[Settings] | None = root
    for name in key.split("."):
        part = table_class(part.model_fields[name]) if part and name in part.model_fields else None
    if part is None:
        return "", ""
    choices = {name: AXES.get(dotted(key, name), {}) for name in names_of(part)}
    fields = [f"{name} ({quoted(names)})" if names else name for name, names in choices.items()]
    meant = [name for name, names in choices.items() if isinstance(value, str) and value in names]
    return f" with {', '.join(fields)}", f'; did you mean {key}.{meant[0]} = "{value}"?' if meant else ""


def _owner(table: str, tree: Mapping[str, Any], root: type[Settings]) -> str:
    if table not in AXES:
        return table or {"Recipe": "a recipe", "Study": "a study"}.get(root.__name__, "the table")
    return f'{table}.name = "{_class_at(table, tree, root).model_fields["name"].default}"'


def _unknown_key(key: str, tree: Mapping[str, Any], root: type[Settings]) -> tuple[str, str]:
    table, _, name = key.rpartition(".")
    owner, settings = _owner(table, tree, root), names_of(_class_at(table, tree, root))
    own = [setting for setting in settings if setting != "name" or table not in AXES]
    has = f"which has {', '.join(own)}" if own else "which has no settings"
    if owners := [choice for choice, part in AXES.get(table, {}).items() if name in part.model_fields]:
        return f"{key} is a setting of {quoted(owners)}, but {owner.replace(' = ', ' is ')}, {has}", ""
    return f"{key} is not a setting of {owner}, {has}", _meant(name, settings, root)


def _meant(name: str, settings: Sequence[str], root: type[Settings]) -> str:
    """Suggest what an unknown name stands for: a setting of the same table, a known alias, or another table's."""
    aliases = _ALIASES if root is Recipe else {}
    if name not in aliases and (own := did_you_mean(name, settings)):
        return own
    # Of settings with the same name the first counts. The cutoff is higher than within a table: there are many keys.
    keys = {key.rpartition(".")[2]: key for key in reversed(list(known_keys(root))) if not key.endswith("name")}
    close = closest(name, keys, cutoff=0.75)
    key = aliases.get(name) or (keys[close] if close else None)
    return f'; did you mean "{key}"?' if key else ""
