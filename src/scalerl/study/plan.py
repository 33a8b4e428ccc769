"""Resolve a study: the complete recipe of every arm and seed, and what each arm changes. Errors come before any run."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalerl.errors import RecipeError, StudyError
from scalerl.forecast.report.runs import PER_RUN
from scalerl.recipe.effects import inert
from scalerl.recipe.keys import is_at
from scalerl.recipe.load import load_layers, override_layer
from scalerl.recipe.parts import BudgetSettings
from scalerl.recipe.recipe import Recipe
from scalerl.recipe.secrets import secrets_in
from scalerl.recipe.suggest import show
from scalerl.recipe.tree import differences, expand, merge
from scalerl.study.leave_one_out import LEAVE_ONE_OUT
from scalerl.study.spec import Study

_DERIVED = "leave_one_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A recipe and how it differs from the base."""

    name: str
    recipe: Recipe
    changes: Mapping[str, tuple[Any, Any]]
    """(value of the base, value of this arm) by dotted key; None if there is no such setting. Empty for the base."""
    skipped: str | None = None
    """Why this arm is not run; None if it is run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """One arm with one seed."""

    arm: str
    seed: int
    recipe: Recipe

    @property
    def name(self) -> str:
        return f"{self.arm}-seed{self.seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPlan:
    """What a study will run."""

    name: str
    study: Study
    arms: tuple[Arm, ...]
    """The base first."""

    @property
    def base(self) -> Arm:
        return self.arms[0]

    @property
    def adds_base(self) -> bool:
        """Whether the base is added as an arm because the study file does not name it: arms are compared with it."""
        return all(self.study.arms.values())

    @property
    def runs(self) -> tuple[PlannedRun, ...]:
        """Runs in order of seeds, so that an interrupted study has compared all arms with the first seeds."""
        runs: list[PlannedRun] = []
        for seed in self.study.seeds:
            for arm in self.arms:
                if arm.skipped is None:
                    recipe = arm.recipe.model_copy(update={"seed": seed})
                    runs.append(PlannedRun(arm=arm.name, seed=seed, recipe=recipe))
        return tuple(runs)


def make_plan(name: str, study: Study, overrides: Sequence[str] = (), *, gpu: bool) -> StudyPlan:
    """Resolve every arm; `overrides` are the user's `key=value` texts. Raise StudyError with every problem."""
    base_names = [arm for arm, changes in study.arms.items() if not changes]
    base_name = base_names[0] if base_names else Path(study.base).stem
    resolve = _Resolver(name, study, overrides)
    base = resolve.recipe(base_name, {}, "set")
    if base is None:
        raise StudyError(*resolve.problems)
    wanted = {arm: (changes, f"arms.{arm}") for arm, changes in study.arms.items() if changes}
    wanted |= {arm: (LEAVE_ONE_OUT[arm](base), _DERIVED) for arm in study.leave_one_out}
    if base_name in wanted:
        raise StudyError(
            f"study {name}: the arm {base_name} has the name of the base recipe: rename it, or name the "
            f"base with an empty table, [arms.NAME]"
        )
    arms = [Arm(name=base_name, recipe=base, changes={})]
    for arm, (changes, where) in wanted.items():
        recipe = resolve.recipe(arm, changes, where)
        if recipe is not None:
            arms.append(_against(base, arm, recipe, gpu=gpu, is_derived=where == _DERIVED))
    problems = [
        *resolve.problems,
        *_secrets(name, arms),
        *(f"study {name}: {problem}" for problem in _equal_arms(arms)),
    ]
    if problems:
        raise StudyError(*dict.fromkeys(problems))
    return StudyPlan(name=name, study=study, arms=tuple(arms))


def _secrets(name: str, arms: Sequence[Arm]) -> Iterator[str]:
    """Yield a sentence for each secret in a recipe, because recipes of a study are written to files for its runs."""
    for arm in arms:
        for key, _ in secrets_in(arm.recipe.model_dump(mode="json")):
            yield (
                f"study {name}: {key} looks like a secret, and a study writes its recipes to files: put it into an "
                f'environment variable and write "env:NAME", or read the variable in your own function'
            )


def changes_of(base: Recipe, recipe: Recipe) -> dict[str, tuple[Any, Any]]:
    """Return the settings in which a recipe differs from the base, except seed and description."""
    return {key: values for key, values in differences(base, recipe).items() if key not in PER_RUN}


def unset(recipe: Recipe) -> list[str]:
    """Return the settings that are missing before this recipe can be trained."""
    missing: list[str] = []
    if recipe.model.path is None:
        missing.append("model.path")
    if recipe.task.name is None and not recipe.tasks:
        missing.append("task.name")
    return missing


def check_runnable(plan: StudyPlan) -> None:
    """Raise StudyError if the runs cannot start, or if there is nothing to compare the base with."""
    arms = [arm for arm in plan.arms if arm.skipped is None]
    if len(arms) == 1:
        reasons = (f"{arm.name} is not run: {arm.skipped}" for arm in plan.arms if arm.skipped is not None)
        raise StudyError(f"study {plan.name} has nothing to compare {plan.base.name} with here", *reasons)
    missing = sorted({key for arm in arms for key in unset(arm.recipe)})
    if missing:
        raise StudyError(
            f"study {plan.name}: {' and '.join(missing)} not set, so there is nothing to train: add "
            f"{' '.join(f'--set {key}=...' for key in missing)}, or set it in the study's [set]"
        )


class _Resolver:
    """Resolves the recipes of a study and collects the problems of those that are invalid."""

    def __init__(self, name: str, study: Study, overrides: Sequence[str]) -> None:
        self._name = name
        self._study = study
        by_user = [override_layer(text) for text in overrides]
        self._budgets = [layer for layer in by_user if "budget" in layer[1]]
        self._others = [layer for layer in by_user if "budget" not in layer[1]]
        self.problems: list[str] = []

    def recipe(self, arm: str, changes: Mapping[str, Any], where: str) -> Recipe | None:
        """Apply the changes of the study, the user and the arm, in this order; the user's budget comes last.

        Return None if the recipe is invalid; `problems` then says why.
        """
        own = expand({key: value for key, value in changes.items() if key != "recipe"})
        shared = expand(self._study.set)
        if self._study.budget is not None and "budget" not in own:
            shared = merge(shared, {"budget": self._study.budget.model_dump(exclude_none=True)})
        groups = [("[set]", shared)], self._others, [(f"[{where}]", own)], self._budgets
        try:
            recipe = load_layers(changes.get("recipe", self._study.base), *groups)
        except RecipeError as error:
            # The origin of a problem is a table of the study, or a --set of the user.
            for problem in error.details:
                sign = ", " if problem.origin.startswith("[") else ": "
                self.problems.append(f"study {self._name}{sign}{problem}")
            return None
        update: dict[str, Any] = {"description": f"Arm {arm} of the study {self._name}"}
        limits: set[str] = set()
        for _, layer in self._budgets:
            limits.update(layer["budget"])
        if not limits:
            limits.update(shared.get("budget", {}), own.get("budget", {}))
        if limits:
            # If a limit is set, the other limits of the recipe no longer apply: they could end runs early.
            update["budget"] = BudgetSettings(**{key: value for key, value in recipe.budget if key in limits})
        return recipe.model_copy(update=update)


def _against(base: Recipe, name: str, recipe: Recipe, *, gpu: bool, is_derived: bool) -> Arm:
    """Return an arm, skipped if it is the base, or changes only what has no effect, here and in the base."""
    changes = changes_of(base, recipe)
    of_base = inert(base, gpu=gpu)
    reasons = {key: reason for key, reason in inert(recipe, gpu=gpu).items() if key in of_base}
    without_effect: dict[str, str] = {}
    for key in changes:
        for table, reason in reasons.items():
            if is_at(key, table):
                without_effect[key] = reason
    skipped = None
    if not changes and is_derived:
        skipped = "the base does not have this component"
    elif changes and len(without_effect) == len(changes):
        key, reason = next(iter(without_effect.items()))
        skipped = f"inert on this device: {key} changes nothing, since {reason}"
    return Arm(name=name, recipe=recipe, changes=changes, skipped=skipped)


def _equal_arms(arms: Sequence[Arm]) -> list[str]:
    others = arms[1:]
    problems: list[str] = []
    for arm in others:
        if not arm.changes and arm.skipped is None:
            problems.append(
                f"the arm {arm.name} equals the base: it changes nothing, so their runs would be the same; change "
                f"something in it, or remove it"
            )
    for arm, other in itertools.combinations(others, 2):
        if arm.changes and arm.changes == other.changes:
            problems.append(f"the arms {arm.name} and {other.name} are equal: remove one")
    return problems


def show_changes(arm: Arm) -> str:
    """Return the changes of an arm in one line."""
    return ", ".join(f"{key} = {show(new)}" for key, (_, new) in arm.changes.items() if new is not None)
