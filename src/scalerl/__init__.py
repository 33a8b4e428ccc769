"""Predictable reinforcement learning for language models, after ScaleRL (arXiv 2510.13786).

Train with a recipe, fit the curve of reward against compute, and read off where it will level off:

    import scalerl

    run = scalerl.train("tiny-cpu", "runs/first", settings={"budget.steps": 60})
    fit = scalerl.fit_run("runs/first")               # or run.fit(); any framework's log will do
    print(fit.params["ceiling"], fit.interval("ceiling"), fit.verdict)

Bring your own problems, grader or loss as objects:

    def near(text, answer):                           # True, False, a number from 0 to 1, or None for no verdict
        return 1 - min(abs(int(text) - int(answer)), 10) / 10

    rows = [{"prompt": f"{n}+{n}=", "answer": str(2 * n)} for n in range(500)]
    scalerl.train("tiny-cpu", "runs/mine", problems=rows, grader=near)

Functions: train, evaluate, sft, export, fit_run, load_recipe. Modules: scalerl.curves fits, forecasts and compares
curves given as numbers; scalerl.config has every setting; scalerl.errors has every error. The command `scalerl` does
the same. Importing this loads neither torch nor numpy; training needs the extra "train".
"""

from scalerl.api import TrainedRun, evaluate, export, fit_run, load_recipe, sft, train

__version__ = "0.1.0"

__all__ = ["TrainedRun", "__version__", "evaluate", "export", "fit_run", "load_recipe", "sft", "train"]
