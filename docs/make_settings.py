"""Write docs/settings.md: every setting of a recipe, with its default and its meaning, from the classes themselves.

python docs/make_settings.py
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from scalerl.recipe.choose import keyword_settings
from scalerl.recipe.load import DERIVED
from scalerl.recipe.parts import EvalSetSettings, GraderSettings, MixedTaskSettings, Settings, TaskSettings
from scalerl.recipe.recipe import Recipe
from scalerl.recipe.task_settings import TASK_SETTINGS
from scalerl.recipe.tree import axis_choices, dotted, table_class
from scalerl.training.tasks.problems import TASKS

PAGE = Path(__file__).with_name("settings.md")
HEAD = """# Settings

Change a setting of a recipe in a TOML file or with `--set KEY=VALUE`; unknown keys are errors.
`scalerl recipe show RECIPE` prints all values, `scalerl recipe diff` compares two recipes; a run folder is a recipe
too. A file may begin with `extends`, the recipe that it changes, and `derived`, the settings that model and problems
fill in when a run starts.

Instead of a name that is listed, an axis takes the import path of a function, `package.module:function`: **a recipe
with import paths is code**, and so is `rollout.vllm.python` ([Security](security.md)).
"""
NAMED = {
    "tasks": ("NAME", MixedTaskSettings),
    "evaluation.sets": ("NAME", EvalSetSettings),
    "task.graders": ("NAME", GraderSettings),
}
"""Tables under names of the user's own."""

Row = tuple[str, str, str]


def page() -> str:
    """Return the page."""
    sections = ["\n".join([HEAD, *_table(_top(Recipe))])]
    for name, field in Recipe.model_fields.items():
        if rows := list(_rows(field, name)):
            # The first row of an axis has its description.
            intro = "" if axis_choices(field) or not field.description else f"{field.description}\n"
            sections.append("\n".join([f"## {name}\n", *([intro] if intro else []), *_table(rows)]))
    sections.append(
        "## Settings of each task\n\nKeys of `[task]`, `[tasks.NAME]` and `[evaluation.sets.NAME]`, by the task's name."
    )
    for tasks, rows in _settings_of_tasks().items():
        sections.append("\n".join([f"### {', '.join(tasks)}\n", *_table(rows)]))
    return "\n\n".join(sections) + "\n"


def count() -> int:
    """Return how many settings there are."""
    return sum(line.startswith("| `") for line in page().splitlines())


def _settings_of_tasks() -> dict[tuple[str, ...], list[Row]]:
    """Return the settings of tasks by the tasks that have them, so that a setting is a row once."""
    users: dict[Row, list[str]] = {}
    for task, meanings in TASK_SETTINGS.items():
        parameters = keyword_settings(TASKS[task])
        for key, text in meanings.items():
            default = parameters[key].default
            shown = "required" if default is parameters[key].empty else _shown(default)
            users.setdefault((key, shown, text), []).append(task)
    rows_of: dict[tuple[str, ...], list[Row]] = {}
    for row, tasks in users.items():
        rows_of.setdefault(tuple(tasks), []).append(row)
    return rows_of


def _top(part: type[Settings]) -> list[Row]:
    fields = {name: field for name, field in part.model_fields.items() if not list(_rows(field, name))}
    del fields[DERIVED]
    return [(name, _default(field), _text(field)) for name, field in fields.items()]


def _rows(field: FieldInfo, key: str) -> Iterator[Row]:
    """Yield the settings of a field that is a table or an axis."""
    if choices := axis_choices(field):
        names = ", ".join(f"`{name}`" for name in choices)
        yield f"{key}.name", _shown(field.get_default().name), f"{_text(field)} One of {names}."
        choosers: dict[Row, list[str]] = {}
        for name, choice in choices.items():
            for own, inner in choice.model_fields.items():
                if own != "name":
                    choosers.setdefault((f"{key}.{own}", _default(inner), _text(inner)), []).append(f"`{name}`")
        for (setting, default, text), users in choosers.items():
            yield setting, default, f"{', '.join(users)}: {text}"
    elif key in NAMED:
        place, part = NAMED[key]
        shared = set(TaskSettings.model_fields) if key != "task.graders" else set()
        for own, inner in part.model_fields.items():
            if own not in shared or part is GraderSettings:
                yield f"{key}.{place}.{own}", _default(inner), _text(inner)
    elif part := table_class(field):
        for own, inner in part.model_fields.items():
            if inner.exclude:
                continue
            nested = list(_rows(inner, dotted(key, own)))
            yield from nested or [(dotted(key, own), _default(inner), _text(inner))]


def _table(rows: list[Row]) -> list[str]:
    cells = ["| setting | default | meaning |", "|---|---|---|"]
    return [*cells, *(f"| `{key}` | {default} | {text} |" for key, default, text in rows)]


def _default(field: FieldInfo) -> str:
    return "required" if field.is_required() else _shown(field.get_default(call_default_factory=True))


def _shown(value: Any) -> str:
    if value is None:
        return "unset"
    return f"`{json.dumps(value, ensure_ascii=False)}`" if not isinstance(value, float) else f"`{value:g}`"


def _text(field: FieldInfo) -> str:
    return " ".join((field.description or "").split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{count()} settings in {PAGE}")
