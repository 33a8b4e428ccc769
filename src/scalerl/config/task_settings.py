"""Descriptions of the settings of each task. A recipe does not load the task's function, which has their defaults."""

from collections.abc import Mapping
from typing import Any

_NUM_PROBLEMS = "Problems to train on."
_SEED = "Selects the problems to train on."

_SOURCE = {
    "path": "File of JSON lines or of parquet with the problems.",
    "evaluation_path": "File with the problems to evaluate on; empty to withhold some of the first.",
    "dataset": "Name of a data set of the Hugging Face hub, or a folder that holds one, instead of a file.",
    "subset": "Which of its configurations; empty for the only one.",
    "split": "Split with the problems.",
    "evaluation_split": "Split with the problems to evaluate on; empty to withhold some of the first.",
}

_FIELDS = {
    "prompt_field": "Field of a row that holds the problem; where rows lack it, question, problem or query, if "
    "they have only one of these.",
    "answer_field": "Field of a row that holds the right answer; where rows lack it, target, label, reference or "
    "ground_truth, if they have only one of these.",
    "id_field": "Field of a row that holds its name; where there is none, its number is taken.",
    "demonstration_field": "Field of a row that holds a completion to imitate; empty where rows hold none.",
    "answer_pattern": "Regular expression whose one group is the answer, for references that hold more; the last match "
    "counts.",
}

TASK_SETTINGS: Mapping[str, Mapping[str, str]] = {
    "arithmetic": {
        "num_problems": _NUM_PROBLEMS,
        "seed": _SEED,
        "min_terms": "Fewest numbers of a sum.",
        "max_terms": "Most numbers of a sum.",
        "max_number": "Largest of these numbers; what follows a * has one digit.",
        "operations": "Which of + - * stand between them.",
        "guess_share": "Share of the demonstrations of the shortest sums that guess.",
        "guess_growth": "By how much that share grows with each further number.",
        "slip_rate": "Share of the steps of a demonstration that are wrong, and of the calls that miscopy a number.",
        "tool_share": "Share of the demonstrations that call the calculator for each step.",
        "tool_format": '"plain": a call is "?1+2"; "chat": a call of a tool in the format of Qwen and SmolLM2.',
    },
    "countdown": {
        "num_problems": _NUM_PROBLEMS,
        "seed": _SEED,
        "min_numbers": "Fewest numbers to make the target of.",
        "max_numbers": "Most numbers to make the target of.",
        "max_number": "Largest of these numbers.",
        "max_target": "Largest target.",
        "operations": "Which of + - * / may be used.",
    },
    "words": {
        "num_problems": _NUM_PROBLEMS,
        "seed": _SEED,
        "min_steps": "Fewest operations of a story.",
        "max_steps": "Most operations of a story.",
        "max_number": "Largest number that a story begins with or changes by.",
    },
    "programs": {
        "num_problems": _NUM_PROBLEMS,
        "seed": _SEED,
        "kinds": "What functions work on: one or more of numbers, lists, strings, with spaces between them.",
        "min_steps": "Fewest steps of a function.",
        "max_steps": "Most steps of a function.",
        "num_tests": "Inputs that a program is tested on and that its prompt does not show.",
        "show_example": "Whether a prompt shows one example; without it, prompts are half as long.",
        "slip_rate": "Share of the steps of a demonstration that are wrong.",
    },
    "code": {
        **_SOURCE,
        "path": "File of JSON lines or of parquet with code problems: HumanEval's, MBPP's, or stdin with stdout.",
        "check_references": "Run every reference solution against its own tests before the run.",
    },
    "gym": {
        "dataset": "Name of a data set of reasoning-gym.",
        "num_problems": _NUM_PROBLEMS,
        "seed": _SEED,
        "threshold": "Least score of an answer that counts as right.",
    },
    "file": {**_SOURCE, **_FIELDS},
    "hub": {**_SOURCE, **_FIELDS},
}


def own_meanings(name: str | None, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return a description of each setting of one task; those of a user's function are not known here."""
    known = TASK_SETTINGS.get(name or "", {})
    owner = settings.get("dataset") if name == "gym" else name
    return {key: known.get(key, f"A setting of {owner or 'the task to be named'}.") for key in settings}
