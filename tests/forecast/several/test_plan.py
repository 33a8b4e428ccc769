"""The planner: probabilities, what continuing is worth, and how a budget is given out."""

import numpy as np
import pytest

from scalerl.forecast.curves import State, decide, fit
from scalerl.forecast.several.plan import Candidate, Reason, explained_sds, knowledge_gradient, plan


def candidate(name: str, ceiling: float, spent: float, *, seed: int = 0, num_runs: int = 1, **more) -> Candidate:
    rng = np.random.default_rng(seed)
    compute = np.arange(0.025, spent + 1e-9, 0.025)
    reward = 0.4 + (ceiling - 0.4) / (1 + (0.2 / compute) ** 1.8)
    curve = fit(compute, reward + rng.normal(0, 0.005, len(compute)), start=0.4)
    return Candidate(name=name, spent=spent, fit=curve, num_runs=num_runs, **more)


@pytest.fixture(scope="module")
def arms() -> list[Candidate]:
    return [candidate(n, c, 0.25, seed=s) for s, (n, c) in enumerate({"a": 0.62, "b": 0.60, "c": 0.45}.items())]


def test_probabilities_add_up_and_order_the_arms(arms):
    planned = plan(arms, 1.0)
    shares = [arm.p_best for arm in planned.arms]
    assert sum(shares) == pytest.approx(1.0)
    assert shares[2] < 0.05
    assert set(planned.chosen) <= {"a", "b"}
    losses = [arm.loss for arm in planned.arms]
    assert min(losses) >= 0
    assert max(losses) == losses[2]


def test_a_clearly_worse_arm_is_stopped(arms):
    planned = plan(arms, 1.0)
    assert planned.arm("c").action == "stop"
    assert planned.arm("c").until is None
    assert planned.arm("c").reason in (Reason.NOT_CHOSEN, Reason.TELLS_LITTLE)
    assert planned.arm(planned.chosen[0]).action == "continue"


def test_budget_limits_what_is_continued(arms):
    free, planned = plan(arms, 1.0), plan(arms, 1.0, budget=0.8)
    assert free.cost > 0.05
    assert planned.cost == pytest.approx(0.05)
    assert planned.cost + sum(arm.spent for arm in planned.arms) <= 0.8 + 1e-9
    assert not planned.is_budget_spent


def test_a_spent_budget_is_no_verdict_on_the_arms(arms):
    planned = plan(arms, 1.0, budget=0.75)
    assert planned.is_budget_spent
    assert planned.cost == 0
    continued = {arm.name for arm in plan(arms, 1.0).arms if arm.action == "continue"}
    assert {arm.name for arm in planned.arms if arm.reason == Reason.BUDGET} == continued


def test_a_decided_plan_finishes_the_chosen_arm():
    planned = plan([candidate("a", 0.7, 0.5), candidate("b", 0.5, 0.5, seed=1)], 1.0)
    assert planned.kind == "decided"
    assert (planned.arm("a").action, planned.arm("a").until) == ("continue", 1.0)
    assert planned.arm("b").action == "stop"


def test_arms_at_the_target_are_done_and_may_tie():
    same = [candidate("a", 0.6, 1.0, seed=2), candidate("b", 0.6, 1.0, seed=3)]
    planned = plan(same, 1.0)
    assert {arm.action for arm in planned.arms} == {"done"}
    assert planned.kind in ("open", "decided")
    assert {arm.reason for arm in planned.arms} == {Reason.AT_TARGET}
    assert planned.cost == 0


def test_an_arm_without_a_curve_comes_first(arms):
    planned = plan([*arms[:2], Candidate(name="new", spent=0.0, fit=None)], 1.0)
    assert planned.arm("new").action == "continue"
    assert planned.arm("new").rate == np.inf


def test_an_arm_without_a_curve_may_be_like_the_others(arms):
    planned = plan([*arms, Candidate(name="new", spent=0.0, fit=None)], 1.0)
    new = planned.arm("new")
    assert np.isfinite(new.rate)
    assert 0 < new.p_best < 1


def test_several_seeds_cost_several_times(arms):
    doubled = [candidate("a", 0.62, 0.25, num_runs=2), *arms[1:]]
    single, double = plan(arms, 1.0).arm("a"), plan(doubled, 1.0).arm("a")
    assert double.rate == pytest.approx(single.rate / 2, rel=1e-6)


def test_knowledge_gradient_against_a_simulation():
    rng = np.random.default_rng(0)
    gap, spread = 0.01, 0.02
    moved = gap + spread * rng.standard_normal(400_000)
    expected = np.maximum(moved, 0.0).mean() - gap
    assert knowledge_gradient(gap, np.array([spread]))[0] == pytest.approx(expected, rel=0.02)


def test_longer_horizons_explain_more(arms):
    curve = arms[0].fit
    assert curve is not None
    horizons = np.array([0.35, 0.6, 1.0])
    explained = explained_sds(curve, horizons, 1.0)
    assert (np.diff(explained) > 0).all()
    assert explained[-1] <= curve.curve_draws([1.0]).std() + 1e-9


def test_an_arm_past_its_peak_offers_its_best_checkpoint():
    """It is not continued, and the others are not stopped with it."""
    compute = np.arange(0.0125, 0.5 + 1e-9, 0.0125)
    reward = 0.4 + 0.3 / (1 + (0.04 / np.minimum(compute, 0.3)) ** 2.5) - 0.1 * np.maximum(compute - 0.3, 0) / 0.2
    fallen = fit(compute, reward + np.random.default_rng(0).normal(0, 0.003, len(compute)), start=0.4)
    assert decide(fallen).state == State.PAST_PEAK
    arms = [
        Candidate(name="fallen", spent=0.5, fit=fallen),
        candidate("steady", 0.72, 0.15, seed=1),
    ]
    planned = plan(arms, 1.0)
    at_target = planned.arm("fallen").reward_at_target
    assert at_target is not None
    assert at_target.value == pytest.approx(reward.max(), abs=0.02)
    assert (planned.arm("fallen").action, planned.arm("fallen").until) == ("stop", None)
    assert planned.arm("steady").action == "continue"
