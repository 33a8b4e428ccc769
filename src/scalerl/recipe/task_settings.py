"""Descriptions of the settings of tasks. Their defaults are in the tasks' functions, which a recipe does not load."""

from collections.abc import Mapping
from typing import Any

_NUM_PROBLEMS = "Training problems."
_SEED = "Selects the training problems."

_SOURCE = {
    "path": "File with the problems, in JSON lines or parquet.",
    "evaluation_path": "File with the evaluation problems; if empty, some of the first are withheld.",
    "dataset": "Data set on the Hugging Face hub, or a folder with one, instead of a file.",
    "subset": "Configuration of the data set; empty for the only one.",
    "split": "Split with the problems.",
    "evaluation_split": "Split with the evaluation problems; if empty, some of the first are withheld.",
}

_FIELDS = {
    "prompt_field": "Field with the problem; if missing, the only one of question, problem and query.",
    "answer_field": "Field with the correct answer; if missing, the only one of target, label, reference and "
    "ground_truth.",
    "id_field": "Field with the id of a row; by default the row's number.",
    "demonstration_field": "Field with a completion to imitate; empty for none.",
    "answer_pattern": "Regular expression whose one group is the answer in a longer reference; the last match counts.",
}

TASK_SETTINGS: Mapping[str, Mapping[str, str]] = {
    "arithmetic": {
        "num_problems": _NUM_PROBLEMS,
        "seed": _SEED,
        "min_terms": "Smallest number of terms in a sum.",
        "max_terms": "Largest number of terms in a sum.",
        "max_number": "Largest term; a factor after a * has one digit.",
        "operations": "The operations to use, of + - *.",
        "guess_share": "Share of the demonstrations of the shortest sums that guess.",
        "guess_growth": "Increase of that share with each further term.",
        "slip_rate": "Share of wrong steps in demonstrations, and of calls with a wrong number.",
        "tool_share": "Share of the demonstrations that call the calculator for each step.",
        "tool_format": 'Format of calls: "plain", as in "?1+2", or "chat", the format of Qwen and SmolLM2.',
    },
    "programs": {
        "num_problems": _NUM_PROBLEMS,
        "seed": _SEED,
        "kinds": "Types of arguments: some of numbers, lists, strings.",
        "min_steps": "Smallest number of steps in a function.",
        "max_steps": "Largest number of steps in a function.",
        "num_tests": "Test inputs that the prompt does not show.",
        "show_example": "Whether the prompt shows an example; without it, prompts are half as long.",
        "slip_rate": "Share of wrong steps in demonstrations.",
    },
    "code": {
        **_SOURCE,
        "path": "File with code problems, in JSON lines or parquet: HumanEval, MBPP, or stdin with stdout.",
        "check_references": "Test every reference solution before the run.",
    },
    "gym": {
        "dataset": "Name of a data set in reasoning-gym.",
        "num_problems": _NUM_PROBLEMS,
        "seed": _SEED,
        "threshold": "Smallest score of a correct answer.",
    },
    "file": {**_SOURCE, **_FIELDS},
    "hub": {**_SOURCE, **_FIELDS},
}

DEMONSTRATION_SETTINGS: Mapping[str, frozenset[str]] = {
    "arithmetic": frozenset({"guess_share", "guess_growth", "slip_rate", "tool_share", "tool_format"}),
    "programs": frozenset({"slip_rate"}),
}
"""Settings of tasks that act on demonstrations alone, which only `scalerl sft` reads."""


def own_meanings(name: str | None, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return a description of each setting of a task; settings of a user's function are unknown here."""
    known = TASK_SETTINGS.get(name or "", {})
    owner = settings.get("dataset") if name == "gym" else name
    return {key: known.get(key, f"A setting of {owner or 'the task to be named'}.") for key in settings}
