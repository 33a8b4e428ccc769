"""The recipe of the paper's data, on small files with the fields of the real ones."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from scalerl.recipe.load import load_recipe
from scalerl.training.graders.rules import GRADERS
from scalerl.training.tasks.build import build_task, build_tasks

POLARIS = [{"problem": f"Find ${each}^2$.", "answer": str(each**2), "difficulty": "3/8"} for each in range(40)]
SHARED = {"problem": "Find $a$ if $a + 1 = \\frac{3}{2}$.", "answer": "\\frac{1}{2}", "difficulty": "3/8"}
AIME24 = [
    {
        "id": 60 + each,
        "problem": f"Aya walks {each} km.",
        "solution": f"... \\boxed{{{each:03d}}}",
        "answer": f"{each:03d}",
    }
    for each in range(3)
]
AIME25 = [{"problem": f"Find all $b > {each}$.", "answer": str(70 + each), "id": str(each)} for each in range(3)]
SOLVED = {"solution": "We have $a = \\frac12$, so the answer is $\\boxed{\\frac{1}{2}}$.", "answer": "\\frac{1}{2}"}
MATH500 = [{"problem": SHARED["problem"], **SOLVED, "subject": "Algebra", "level": 2, "unique_id": "test/807.json"}]
FILES: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "polaris-data-53K": [*POLARIS, SHARED],
    "aime24": AIME24,
    "aime25": AIME25,
    "math500": MATH500,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, rows in FILES.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_recipe_reads_the_papers_files_as_they_are(folder):
    recipe = load_recipe("scalerl-8b-polaris", ["evaluation.num_prompts=10"])
    (task,) = build_tasks(recipe.task, recipe.tasks, recipe.evaluation).values()
    sets = {name: build_task(part, recipe.evaluation) for name, part in recipe.evaluation.sets.items()}
    assert len(task.evaluation) == 10
    assert {name: len(each.evaluation) for name, each in sets.items()} == {"aime24": 3, "aime25": 3, "math500": 1}
    assert {len(each.training) for each in sets.values()} <= {0}
    for each in (task, *sets.values()):
        problem = each.evaluation[0]
        assert each.grader == "math"
        assert each.prompt.chat
        right = f"<think>so</think> The answer is $\\boxed{{{problem.answer}}}$."
        assert GRADERS["math"](right, problem.answer) is True
        assert GRADERS["math"](right.replace(problem.answer, "12345"), problem.answer) is False
