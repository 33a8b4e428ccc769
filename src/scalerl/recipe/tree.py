"""A recipe as a tree of tables: find axes, merge trees, and list settings."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic.fields import FieldInfo

from scalerl.recipe.keys import Tree, dotted
from scalerl.recipe.parts import CustomSettings, Settings
from scalerl.recipe.recipe import Recipe
from scalerl.recipe.task_settings import own_meanings


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One leaf of a recipe."""

    key: str
    value: Any
    doc: str


def _parts_in(annotation: Any) -> Iterator[type[Settings]]:
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        yield annotation
    for argument in get_args(annotation):
        yield from _parts_in(argument)


def axis_choices(field: FieldInfo) -> dict[str, type[Settings]]:
    """Return the built-in choices of an axis by name; empty for a field that is not an axis."""
    parts = list(_parts_in(field.annotation))
    if CustomSettings not in parts:
        return {}
    return {part.model_fields["name"].default: part for part in parts if part is not CustomSettings}


def table_class(field: FieldInfo) -> type[Settings] | None:
    """Return the class of a field that is, or may be, a plain table."""
    tables = {*(get_args(field.annotation) or [field.annotation])} - {type(None)}
    if len(tables) != 1:
        return None
    (annotation,) = tables
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return annotation
    return None


def walk(
    part: type[Settings] = Recipe, table: str = ""
) -> Iterator[tuple[str, FieldInfo, dict[str, type[Settings]] | type[Settings] | None]]:
    """Yield every key that a recipe may have, its field, and its choices, its table or None."""
    for name, field in _written(part).items():
        key = dotted(table, name)
        choices = axis_choices(field)
        inner = table_class(field)
        yield key, field, choices or inner
        tables = list(choices.values())
        if inner and not choices:
            tables = [inner]
        for below in tables:
            yield from walk(below, key)


def _written(part: type[Settings]) -> dict[str, FieldInfo]:
    """Return the fields that a recipe file may contain."""
    return {name: field for name, field in part.model_fields.items() if not field.exclude}


AXES = {key: choices for key, _, choices in walk() if isinstance(choices, dict)}
"""Choices of each axis: {"loss": {"cispo": Cispo, ...}, ...}."""

DEFAULT_NAMES = {key: field.get_default().name for key, field, _ in walk() if key in AXES}


PROBLEM_FILES = (".jsonl", ".json", ".parquet", ".jsonl.gz")
"""Suffixes of files of problems."""


def is_named(key: str) -> bool:
    """Return whether the table at a key is a named choice, which may be written as its bare name."""
    table, _, name = key.rpartition(".")
    is_task = key == "task" or (table in ("tasks", "evaluation.sets") and bool(name))
    return key in AXES or is_task or (name == "environment" and is_named(table))


def expand(tree: Tree, table: str = "") -> dict[str, Any]:
    """Replace bare names by tables: loss = "dapo" becomes loss = {name = "dapo"}, and a file of problems its task."""
    expanded: dict[str, Any] = {}
    for name, value in tree.items():
        key = dotted(table, name)
        if isinstance(value, str) and is_named(key):
            if key not in AXES and value.endswith(PROBLEM_FILES):
                value = {"name": "file", "path": value}
            else:
                value = {"name": value}
        if isinstance(value, Mapping):
            value = expand(value, key)
        expanded[name] = value
    return expanded


def merge(below: Any, above: Any, key: str = "", *, keeps: bool = False) -> Any:
    """Return `above` merged over `below`; a named table with a different name replaces the other, unless it `keeps`."""
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return above
    renamed = is_named(key) and "name" in above and "name" in below and above["name"] != below["name"]
    if renamed and not keeps:
        return dict(above)
    merged = dict(below)
    for name, value in above.items():
        if name in merged:
            value = merge(merged[name], value, dotted(key, name), keeps=keeps)
        merged[name] = value
    return merged


def names_of(part: type[Settings]) -> list[str]:
    """Return the names of a table's settings in a file."""
    return [field.alias or name for name, field in part.model_fields.items()]


def settings_of(part: Settings, table: str = "", doc: str = "") -> dict[str, Setting]:
    """Return every setting of a recipe by its dotted key, in the order of the classes, with its description.

    `doc` describes the whole table; it is also the description of an axis's name.
    """
    settings: dict[str, Setting] = {}
    docs = {name: " ".join((field.description or "").split()) for name, field in _written(type(part)).items()}
    if extra := part.model_extra:
        docs |= own_meanings(getattr(part, "name", None), extra)
    for name, own_doc in docs.items():
        key = dotted(table, name)
        value = getattr(part, name)
        if isinstance(value, Settings):
            settings |= settings_of(value, key, own_doc)
        elif isinstance(value, Mapping) and all(isinstance(inner, Settings) for inner in value.values()):
            for inner_name, inner in value.items():
                settings |= settings_of(inner, dotted(key, inner_name))
        else:
            settings[key] = Setting(key=key, value=value, doc=own_doc or (doc if name == "name" else ""))
    return settings


def differences(left: Recipe, right: Recipe) -> dict[str, tuple[Any, Any]]:
    """Return the settings in which two recipes differ, by dotted key; None if one recipe lacks the setting."""
    before = _values_of(left)
    after = _values_of(right)
    # Sort by table, to keep the settings of one choice together.
    tables = list(dict.fromkeys(key.partition(".")[0] for key in before | after))
    keys = sorted(before | after, key=lambda key: tables.index(key.partition(".")[0]))
    return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}


def _values_of(recipe: Recipe) -> dict[str, Any]:
    return {key: setting.value for key, setting in settings_of(recipe).items()}


def known_keys(part: type[Settings] = Recipe) -> list[str]:
    """Return the key of every setting that a recipe may have."""
    return [key for key, _, below in walk(part) if below is None]
