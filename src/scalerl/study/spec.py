"""A study file: a base recipe, arms that change it, seeds, a budget, and which data are fitted or held out."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_core import ErrorDetails

from scalerl.errors import StudyError
from scalerl.forecast.logs.axes import Axis
from scalerl.recipe.keys import nested
from scalerl.recipe.load import locate, read_override, read_table
from scalerl.recipe.messages import described
from scalerl.recipe.parts import BudgetSettings, Settings
from scalerl.recipe.suggest import did_you_mean, show
from scalerl.recipe.tree import expand, merge
from scalerl.study.leave_one_out import LEAVE_ONE_OUT

_SUFFIX = ".toml"
_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")

# Keys of --set that change the study itself; every other key is a setting of its recipes.
_STUDY_KEYS = ("arms", "base", "compute", "fit", "holdout", "leave_one_out", "seeds")

Changes = dict[str, Any]


def _all_components(given: Any) -> Any:
    if isinstance(given, bool):
        return list(LEAVE_ONE_OUT) if given else []
    return given


class FitWindowSettings(Settings):
    skip_before: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Leave out evaluations before this share of an arm's compute."""
    until: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Fit evaluations up to this share of an arm's compute."""
    skip_before_compute: Annotated[float, Field(gt=0)] | None = None
    """Replaces skip_before: an amount of compute on the study's axis, the same for all arms."""
    until_compute: Annotated[float, Field(gt=0)] | None = None
    """Replaces until: an amount of compute, the same for all arms."""


class HoldoutSettings(Settings):
    start: float | None = Field(default=None, gt=0, le=1, alias="from")
    """Evaluations from this share of an arm's compute on test the forecast."""
    from_compute: Annotated[float, Field(gt=0)] | None = None
    """Replaces from: an amount of compute, the same for all arms."""


class Study(Settings):
    """One question: what is varied, how often, for how long."""

    description: str = ""
    """The question, in one line."""
    base: str
    """Name or file of the recipe that every arm changes; a file is relative to the study file."""
    set: Changes = Field(default_factory=dict)
    """Changes that the base and all arms share."""
    arms: dict[str, Changes] = Field(default_factory=dict)
    """What each arm changes; an empty table gives the base a name. `recipe` starts an arm from another recipe."""
    leave_one_out: Annotated[list[str], BeforeValidator(_all_components)] = Field(default_factory=list)
    """Add an arm for each of these components, with that component as in the paper's baseline; true for all."""
    seeds: list[int] = Field(default=[0], min_length=1)
    """Every arm is run once with each seed."""
    budget: BudgetSettings | None = None
    """When each run ends; replaces the recipe's budget."""
    compute: Axis = "gpu_hours"
    """The axis that runs are compared on."""
    fit: FitWindowSettings = FitWindowSettings()
    """Which part of each arm is fitted: skip_before by every fit of the report, until by its back-test."""
    holdout: HoldoutSettings | None = None
    """Which part scores the back-test; by default, everything after the fitted part."""


def load_study(name_or_path: str | Path, overrides: Sequence[str] = ()) -> tuple[str, Study]:
    """Return the name and the settings of a study; raise StudyError with every problem in them.

    `overrides` are `key=value` texts that change the study itself (see `divided`).
    """
    label, source, _ = locate("study", name_or_path, StudyError)
    tree = read_table(label, source, StudyError)
    new_base = [change for change in overrides if change.partition("=")[0].strip() == "base"]
    others = [change for change in overrides if change not in new_base]
    for change in new_base:
        tree = _without_amounts(_changed(tree, change))
    for change in others:
        tree = _changed(tree, change)
    label = " with --set ".join([label, *new_base, *others])
    try:
        study = Study.model_validate(tree)
    except ValidationError as error:
        raise StudyError(*(f"{label}: {_sentence(detail, tree)}" for detail in error.errors())) from None
    if problems := list(_conflicts(study)):
        raise StudyError(*(f"{label}: {problem}" for problem in problems))
    name = source.name.removesuffix(_SUFFIX)
    return name, _with_paths_from(study, source.parent) if isinstance(source, Path) else study


# What a user changes --------------------------------------------------------------------------------------------------


def divided(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divide a user's `key=value` texts into those about the study itself and those about its recipes."""
    keys = {text: text.partition("=")[0].strip() for text in overrides}
    for text, key in keys.items():
        if key == "seed":
            raise StudyError(f"--set {text}: a study sets the seeds of its runs: use --set seeds=[...]")
    of_study = [text for text, key in keys.items() if key.partition(".")[0] in _STUDY_KEYS]
    return of_study, [text for text in keys if text not in of_study]


def _changed(tree: Mapping[str, Any], text: str) -> dict[str, Any]:
    key, value = read_override(text)
    table, _, rest = key.partition(".")
    if table != "arms":
        return merge(tree, nested(key, value))
    arms = tree.get("arms", {})
    # Take the longest name that matches, because names may contain dots.
    names = sorted((name for name in arms if rest.startswith(f"{name}.")), key=len)
    if not names:
        raise StudyError(
            f"--set {text}: must look like arms.NAME.KEY=VALUE, where NAME is one of {', '.join(arms) or 'no arm'}"
        )
    change = nested(rest.removeprefix(f"{names[-1]}."), value)
    return {**tree, "arms": {**arms, names[-1]: merge(expand(arms[names[-1]]), expand(change))}}


_AMOUNTS = {"fit": ("skip_before_compute", "until_compute"), "holdout": ("from_compute",)}


def _without_amounts(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a study without its amounts of compute, which suit its own base; another base has a budget of its own."""
    changed = {key: value for key, value in expand(tree).items() if key != "budget"}
    arms = changed.get("arms", {})
    changed["arms"] = {name: _without(arm, "budget") for name, arm in arms.items()}
    for table, amounts in _AMOUNTS.items():
        if table in changed:
            changed[table] = _without(changed[table], *amounts)
    if not changed.get("holdout"):
        changed.pop("holdout", None)
    return changed


def _without(table: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key not in keys}


# Files ----------------------------------------------------------------------------------------------------------------


def _with_paths_from(study: Study, folder: Path) -> Study:
    """Resolve recipe files relative to the study file, not to the current folder."""

    def resolved(reference: Any) -> Any:
        is_path = isinstance(reference, str) and (reference.endswith((_SUFFIX, ".json")) or "/" in reference)
        return str(folder / reference) if is_path else reference

    arms = dict(study.arms)
    for name, changes in study.arms.items():
        if "recipe" in changes:
            arms[name] = {**changes, "recipe": resolved(changes["recipe"])}
    return study.model_copy(update={"base": resolved(study.base), "arms": arms})


# What can be wrong ----------------------------------------------------------------------------------------------------


def _conflicts(study: Study) -> Iterator[str]:
    for name in study.arms:
        if not _NAME.fullmatch(name):
            yield (
                f"arms.{show(name)} cannot name a folder: use letters, digits, '.', '_', '+' and '-', and begin with a "
                f"letter or digit"
            )
    named = [name for name, changes in study.arms.items() if not changes]
    if len(named) > 1:
        yield f"the arms {', '.join(named)} change nothing, so each equals the base: keep one, which names the base"
    if not study.arms and not study.leave_one_out:
        yield "it has no arms: add [arms.NAME] tables of changes, or leave_one_out = true"
    for name in study.leave_one_out:
        if name not in LEAVE_ONE_OUT:
            meant = did_you_mean(name, LEAVE_ONE_OUT)
            yield f'leave_one_out contains "{name}"; choices: {", ".join(LEAVE_ONE_OUT)}{meant}'
    if both := [name for name in study.arms if study.leave_one_out and name in LEAVE_ONE_OUT]:
        yield f"the arm {both[0]} has the same name as an arm that leave_one_out adds: rename it"
    tables = {"set": study.set}
    for name, changes in study.arms.items():
        tables[f"arms.{name}"] = changes
    for table, changes in tables.items():
        if "seed" in changes:
            yield f"{table}.seed is {show(changes['seed'])}, but a study sets the seeds of its runs: set seeds instead"
    if len(set(study.seeds)) < len(study.seeds):
        yield f"seeds = {study.seeds} repeats a seed: equal seeds give equal runs"
    if negative := [seed for seed in study.seeds if seed < 0]:
        yield f"seeds contains {negative[0]}, but a seed must be at least 0"
    if study.budget is not None and not study.budget.model_fields_set:
        yield "budget is empty: set steps, gpu_hours or flops in it, or remove it"
    yield from _window_conflicts(study.fit, study.holdout)


def _window_conflicts(fit: FitWindowSettings, holdout: HoldoutSettings | None) -> Iterator[str]:
    begin = begin_compute = None
    if holdout is not None:
        begin = holdout.start
        begin_compute = holdout.from_compute
        if begin is None and begin_compute is None:
            yield "holdout is empty: set from, a share, or from_compute in it"
    # A share at its default is not set.
    skip = fit.skip_before or None
    until = fit.until if fit.until < 1 else None
    yield from _set_twice("fit.skip_before", skip, fit.skip_before_compute)
    yield from _set_twice("fit.until", until, fit.until_compute)
    yield from _set_twice("holdout.from", begin, begin_compute)
    end = fit.until if fit.until_compute is None else None
    yield from _order_conflicts("", skip, end, begin)
    yield from _order_conflicts("_compute", fit.skip_before_compute, fit.until_compute, begin_compute)


def _set_twice(name: str, share: float | None, compute: float | None) -> Iterator[str]:
    if share is not None and compute is not None:
        yield f"{name} is {share:g} and {name}_compute is {compute:g}: set only one of them"


def _order_conflicts(unit: str, skip: float | None, end: float | None, begin: float | None) -> Iterator[str]:
    """Yield what is wrong with the order of windows in shares, or in amounts of compute."""
    if skip and end and skip >= end:
        yield f"fit.skip_before{unit} is {skip:g} and fit.until{unit} is {end:g}: nothing is left to fit"
    if begin and end and begin < end:
        before = f"holdout.from{unit} is {begin:g}, before fit.until{unit} = {end:g}"
        yield f"{before}: a point that is fitted cannot test the fit"


_HINTS = {
    "base": '; give the recipe that arms change, as in base = "scalerl"',
    "leave_one_out": f" of names, true or false; the names are {', '.join(LEAVE_ONE_OUT)}",
}


def _sentence(error: ErrorDetails, tree: Mapping[str, Any]) -> str:
    key, statement, suggestion = described(error, tree, Study)
    if error["type"] == "extra_forbidden" and "." not in key:
        suggestion = suggestion or "; settings of the recipe belong in [set] or in an arm"
    return statement + _HINTS.get(key, suggestion)
