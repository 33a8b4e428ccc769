"""The study of the first curves: its arms, and what came of it."""

from pathlib import Path

import pytest

from scalerl.choose import choose
from scalerl.config import load_recipe
from scalerl.curves import fit, score
from scalerl.logs import Selection, read_log, series_from
from scalerl.report.results import FitOptions
from scalerl.report.standing import LeadKind
from scalerl.report.write import build_report, report_json
from scalerl.study.plan import changes_of, make_plan
from scalerl.study.spec import load_study
from scalerl.tasks.problems import TASKS

RUNS_FOLDER = Path(__file__).parents[2] / "docs/results/first_curves"
RUNS = sorted((RUNS_FOLDER / "runs").iterdir())


def test_three_arms_of_two_seeds_with_one_budget():
    """The baseline is the paper's, and the other arm differs in its pipeline alone."""
    plan = make_plan(*load_study("first-curves"), gpu=True)
    papers = changes_of(load_recipe("scalerl"), load_recipe("base"))
    assert {arm.name: {key: new for key, (_, new) in arm.changes.items()} for arm in plan.arms} == {
        "scalerl": {},
        "baseline": {key: new for key, (_, new) in papers.items() if not key.startswith("budget.")},
        "ppo-off-policy-8": {"pipeline.max_lag": 7, "pipeline.push_every": 8, "pipeline.drain": True},
    }
    assert len(plan.runs) == 6
    assert len({run.recipe.budget.gpu_hours for run in plan.runs}) == 1


def test_thinking_to_the_point_is_never_interrupted():
    recipe = load_recipe("arithmetic-10m", ["task.guess_share=0.0", "task.guess_growth=0.0", "task.num_problems=100"])
    task = choose(TASKS, recipe.task)(recipe.evaluation.num_prompts, recipe.evaluation.seed)
    assert task.demonstrations is not None
    for one in task.demonstrations(3000, 0):
        thinking, answer = one.completion.removeprefix("<think>").split("</think>")
        # The tags are a token each, the others a character each; an end token follows the answer.
        assert len(thinking) + 2 <= recipe.length.thinking_min  # pyright: ignore[reportAttributeAccessIssue]
        assert len(answer) + 1 <= recipe.length.answer_budget  # pyright: ignore[reportAttributeAccessIssue]
        assert len(one.problem.prompt) + 1 <= recipe.rollout.max_prompt_tokens


# What came of it: docs/results/first_curves


@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: folder.name)
def test_first_half_forecasts_the_second(folder: Path):
    (one,) = series_from([read_log(folder)], Selection(x="flops"))
    later = one.compute > 0.5 * one.compute.max()
    half = fit(one.compute, one.reward, **FitOptions(fit_until=0.5 * one.compute.max()).of(one))
    result = score(half, one.compute[later], one.reward[later])
    assert result is not None
    assert result.rmse < 0.02
    assert result.coverage > 0.6


@pytest.mark.slow
def test_the_first_half_claims_no_ceiling_that_all_points_deny():
    """Two seeds do not separate the ceilings of these recipes."""
    content = report_json(build_report([RUNS_FOLDER], Selection(), FitOptions()))
    assert content["sets"][0]["lead"]["kind"] == LeadKind.TIED
