"""No answer contradicts another: many kinds of runs, alone and in pairs, in other units, orders and levels."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from simulate import sigmoid

from scalerl.forecast.curves import Action, Answer, Fit, State, compare, decide, fit
from scalerl.forecast.curves.decide import LIKELIER, SURE, TIMES, UNLIKELY

COMPUTE = np.linspace(0.1, 4.0, 36)
WORTHS = (1e-4, 0.01, 0.2)


def wander(rng: np.random.Generator, num: int, rho: float, sd: float) -> np.ndarray:
    values = sd * rng.standard_normal(num)
    for index in range(1, num):
        values[index] += rho * values[index - 1]
    return values


def kinds(seed: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Compute and reward of runs of many kinds."""
    rng = np.random.default_rng(seed)
    noise, x = 0.006 * rng.standard_normal(36), COMPUTE
    late = 0.4 + np.where(x > 2, sigmoid(np.maximum(x - 2, 1e-9), midpoint=1.0) - 0.4, 0.0)
    rewards = {
        "rise": sigmoid(x, ceiling=rng.uniform(0.5, 0.9)) + noise,
        "early": sigmoid(x, midpoint=rng.uniform(1.0, 6.0)) + noise,
        "level": sigmoid(x, midpoint=0.1) + noise,
        "flat": 0.5 + 3 * noise,
        "cold start": late + noise,
        "corner": np.minimum(0.2 + 0.2 * x, 0.7) + noise,
        "step": np.where(x > 2, 0.7, 0.4) + noise,
        "fall": sigmoid(x, ceiling=0.8) - 0.2 * (x > 2.5) + noise,
        "dip": sigmoid(x, ceiling=0.8) - 0.15 * ((x > 1.5) & (x < 2.0)) + noise,
        "wander": 0.5 + wander(rng, 36, 0.9, 0.03),
        "rise and wander": sigmoid(x, midpoint=0.3) + wander(rng, 36, 0.9, 0.02),
        "solved": np.minimum(sigmoid(x, ceiling=1.4), 1.0),
        "noise": rng.uniform(0.1, 0.9, 36),
    }
    runs = {name: (x, np.clip(reward, 0.0, 1.0)) for name, reward in rewards.items()}
    runs["six points"] = x[5::6], runs["rise"][1][5::6]
    runs["resumed"] = x[20:], 0.91 + noise[20:]
    return runs


@pytest.fixture(scope="module")
def fits() -> dict[str, Fit]:
    return {f"{name} {seed}": fit(*data) for seed in range(2) for name, data in kinds(seed).items()}


# One run --------------------------------------------------------------------------------------------------------------


def test_state_and_action_agree(fits: dict[str, Fit]):
    seen = set()
    for name, curve in fits.items():
        for worth in WORTHS:
            answer = decide(curve, worth)
            seen.add((answer.state, answer.action))
            what = f"{name}, worth {worth}: {answer}"
            match answer.state:
                case State.TOO_EARLY:
                    assert answer.missing is not None, what
                    assert answer.action == Action.OPEN, what
                case State.FLAT:
                    assert answer.p_seen < LIKELIER, what
                    assert answer.action != Action.GO_ON, what
                case State.RISING:
                    assert answer.p_worth >= LIKELIER, what
                    assert answer.p_nearly_all <= LIKELIER, what
                case State.LEVELLING_OFF:
                    assert answer.p_seen >= LIKELIER, what
                case State.PAST_PEAK:
                    assert answer.action == Action.STOP, what
                    assert answer.p_worth <= LIKELIER, what
            assert (answer.fall is not None) == (answer.state == State.PAST_PEAK), what
            assert (answer.missing is not None) == (answer.state == State.TOO_EARLY), what
            assert (answer.share is not None) == (answer.state in (State.RISING, State.LEVELLING_OFF)), what
            assert answer.fall is None or answer.dip is None, what
            if answer.action == Action.GO_ON:
                assert answer.p_worth > LIKELIER, what
            elif answer.action == Action.STOP and answer.fall is None:
                assert answer.p_worth < UNLIKELY, what
            assert answer.settled_at is None or answer.action == Action.OPEN, what
            assert answer.settled_at in (None, *TIMES), what
    assert {state for state, _ in seen} == set(State)
    assert {action for _, action in seen} == set(Action)


def test_a_larger_worth_never_makes_a_run_go_on(fits: dict[str, Fit]):
    for name, curve in fits.items():
        answers = [decide(curve, worth) for worth in WORTHS]
        assert [each.p_worth for each in answers] == sorted((each.p_worth for each in answers), reverse=True), name
        goes_on = [each.action == Action.GO_ON for each in answers if each.fall is None]
        assert goes_on == sorted(goes_on, reverse=True), name


def test_the_level_that_is_shown_decides_nothing(fits: dict[str, Fit]):
    shown = ("share", "doubling", "fall")
    for name, curve in fits.items():
        one, other = (replace(decide(replace(curve, level=level)), **dict.fromkeys(shown)) for level in (0.5, 0.95))
        np.testing.assert_equal(one, other, name)


@pytest.mark.parametrize("name", kinds(0))
def test_units_decide_nothing(name: str):
    """FLOPs for GPU-hours, and per cent for shares."""
    compute, reward = kinds(1)[name]
    one, other = decide(fit(compute, reward)), decide(fit(2.0**60 * compute, 100.0 * reward, bounds=(0.0, 100.0)))
    assert (one.state, one.action, one.settled_at) == (other.state, other.action, other.settled_at)
    assert one.p_worth == pytest.approx(other.p_worth, abs=0.02)
    assert 100.0 * one.worth == pytest.approx(other.worth)


# Several recipes ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pairs(fits: dict[str, Fit]) -> list[tuple[str, str]]:
    """A few of all pairs, two of a kind, and two that are the same."""
    rng, every = np.random.default_rng(0), list(combinations(fits, 2))
    chosen = [every[index] for index in rng.choice(len(every), 12, replace=False)]
    return [("rise 0", "rise 1"), ("flat 0", "flat 1"), ("solved 0", "solved 1"), *chosen]


def test_the_answer_follows_its_probabilities(fits: dict[str, Fit], pairs: list[tuple[str, str]]):
    seen = set()
    for place, names in enumerate(pairs):
        worth = WORTHS[place % 3]
        result = compare({name: fits[name] for name in names}, worth=worth)
        (pair,), first = result.pairs, result.standings[0]
        what = f"{names}, worth {worth}: {pair}"
        assert result.pick is not None
        assert pair.winner == result.winner, what
        if pair.is_same_run:
            assert (pair.answer, result.pick.answer) == (None, Answer.EITHER), what
            continue
        seen.add(pair.answer)
        assert pair.answer == result.pick.answer, what
        assert pair.p_ahead == pytest.approx(dict(zip(result.names, result.pick.p_best, strict=True))[pair.a])
        match pair.answer:
            case Answer.TAKE:
                assert first.name == pair.winner, what
                assert first.p_best >= SURE, what
                assert first.loss < worth, what
            case Answer.EITHER:
                assert pair.p_close >= SURE, what
            case Answer.OPEN:
                assert pair.p_close < SURE, what
                assert first.p_best < SURE or first.loss >= worth, what
        assert (pair.settling is not None) == (pair.answer == Answer.OPEN), what
        for each in result.standings:
            assert each.uses_best_checkpoint == (decide(fits[each.name], worth).state == State.PAST_PEAK), what
    assert seen == set(Answer)


def test_the_order_of_runs_decides_nothing(fits: dict[str, Fit], pairs: list[tuple[str, str]]):
    for a, b in pairs:
        (here,), (there,) = (compare({name: fits[name] for name in names}).pairs for names in ((a, b), (b, a)))
        assert (here.answer, here.winner, here.settling) == (there.answer, there.winner, there.settling), (a, b)
        assert here.losses == there.losses[::-1], (a, b)
        for name in ("p_ahead", "p_higher_ceiling", "p_larger_exponent"):
            mine, theirs = getattr(here, name), getattr(there, name)
            assert mine == pytest.approx(1.0 - theirs, nan_ok=True), (a, b, name)
        assert here.crossing == there.crossing, (a, b)
        for mine, theirs in zip(here.targets, there.targets, strict=True):
            assert mine.p_less == pytest.approx(1.0 - theirs.p_less), (a, b)


def test_a_third_recipe_that_cannot_win_decides_nothing(fits: dict[str, Fit]):
    hopeless = fit(COMPUTE, np.linspace(0.02, 0.03, 36))
    for a, b in (("rise 0", "corner 0"), ("early 1", "cold start 1")):
        two, three = (compare({name: fits[name] for name in (a, b)} | more) for more in ({}, {"hopeless": hopeless}))
        assert two.pick is not None
        assert three.pick is not None
        assert two.pick.answer == three.pick.answer, (a, b)
        assert set(two.chosen) == set(three.chosen), (a, b)


def test_the_level_that_is_shown_decides_no_comparison(fits: dict[str, Fit], pairs: list[tuple[str, str]]):
    for names in pairs[:6]:
        one, other = (compare({name: replace(fits[name], level=level) for name in names}) for level in (0.5, 0.95))
        assert one.pick == other.pick, names
        assert one.pairs[0].settling == other.pairs[0].settling, names
