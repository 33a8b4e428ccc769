"""Predictable reinforcement learning for language models, after ScaleRL (arXiv 2510.13786).

Train with a recipe, fit the curve of reward against compute, and decide whether to go on:

    import scalerl

    run = scalerl.train("tiny-cpu", "runs/first", settings={"budget.steps": 60})
    fit = scalerl.fit_run("runs/first")               # or run.fit(); any framework's log will do
    decision = scalerl.decide(fit)
    print(decision.state, decision.action)            # such as "rising" and "go on"
    print(fit.params["ceiling"], fit.interval("ceiling"))

Bring your own problems, grader or loss as objects:

    def near(text, answer):                           # True, False, a number from 0 to 1, or None for no verdict
        given = int(text) if text.isdecimal() else -99
        return max(0, 1 - abs(given - int(answer)) / 10)

    rows = [{"prompt": f"{a}+{b}-7=", "answer": str(a + b - 7)} for a in range(1, 21) for b in range(1, 21)]
    scalerl.train("tiny-cpu", "runs/mine", problems=rows, grader=near)

Forecast and compare fitted curves:

    other = scalerl.fit_run("runs/mine")
    scalerl.curves.reward_at(fit, [2 * fit.scale])    # at twice the compute, with an interval
    scalerl.compare({"first": fit, "mine": other}).winner           # None: either will do, or it is open

Look at the log of any trainer:

    runs = scalerl.read("runs.csv", x="hours", y="score", by="recipe")
    runs.compare()                                    # .fit(), .forecast(at=...), .backtest(), .plot(), .to_frame()

Functions: read, train, evaluate, sft, export, fit_run, load_recipe, decide, compare. Values: Decision, State, Action,
Answer. Modules, loaded when first used: scalerl.curves fits, forecasts and compares curves given as numbers;
scalerl.joint pools and plans; scalerl.callbacks has forecasts for other trainers; scalerl.config has every setting;
scalerl.errors has every error. The command `scalerl` does the same. Importing this loads neither torch nor numpy;
training needs the extra "train".
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from scalerl.api import TrainedRun, evaluate, export, fit_run, load_recipe, read, sft, train

if TYPE_CHECKING:
    from scalerl import callbacks, config, curves, errors, joint
    from scalerl.curves import Action, Answer, Decision, State, compare, decide

__version__ = "0.3.0"

__all__ = [
    "Action",
    "Answer",
    "Decision",
    "State",
    "TrainedRun",
    "__version__",
    "callbacks",
    "compare",
    "config",
    "curves",
    "decide",
    "errors",
    "evaluate",
    "export",
    "fit_run",
    "joint",
    "load_recipe",
    "read",
    "sft",
    "train",
]

_MODULES = ("callbacks", "config", "curves", "errors", "joint")
_DECISIONS = ("Action", "Answer", "Decision", "State", "compare", "decide")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"scalerl.{name}")
    if name in _DECISIONS:
        return getattr(import_module("scalerl.curves"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
