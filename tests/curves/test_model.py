"""The model's closed forms against numerical integration."""

import numpy as np
import pytest
from scipy.special import log_ndtr
from simulate import run

from scalerl.curves import FORMS, Verdict, fit, priors
from scalerl.curves.data import make_blocks, make_points
from scalerl.curves.forms import sigmoid
from scalerl.curves.model import (
    NODES,
    Candidates,
    Covariance,
    Kind,
    _draw,
    all_covariances,
    columns,
    departing,
    drifting,
    evidence,
    log_gain_prior,
    log_shape_prior,
    make_problem,
    white_noise,
)


@pytest.fixture(scope="module")
def problem():
    compute, reward = run(0, num=14, reach=3.0)
    blocks = make_blocks(make_points(compute, reward, bounds=None), None, None)
    return make_problem(blocks, FORMS["sigmoid"], priors.WEAK, None)


@pytest.fixture(scope="module")
def white(problem) -> Covariance:
    return white_noise(problem.blocks)


def candidates(*rows: tuple[Kind, float, float, float]) -> Candidates:
    kind, exponent, midpoint, place = zip(*rows, strict=True)
    zeros = np.zeros(len(rows))
    return Candidates(
        kind=np.array(kind, dtype=int),
        log_exponent=np.log(exponent),
        log_midpoint=np.log(midpoint),
        place=np.log(place),
        length=zeros + 1.0,
        log_weight=zeros,
    )


ROWS = [(Kind.rise, 1.9, 0.33, 1.0), (Kind.rise, 1.5, 0.4, 1.0), (Kind.flat, 1.0, 1.0, 1.0), (Kind.tail, 2.2, 0.3, 1.2)]


def by_integration(problem, cells: Candidates) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log evidence of each candidate, and the posterior means of level and gain: sums over dense grids."""
    blocks = problem.blocks
    s, e = columns(blocks, problem.form, cells)
    log_noise = np.log(blocks.noise) + np.linspace(-1.2, 3.6, 64)
    df = problem.noise_df
    log_total, levels, gains = [], [], []
    for index, kind in enumerate(cells.kind):
        mass = []
        gain_grid = np.array([0.0]) if kind == Kind.flat else np.exp(np.linspace(np.log(0.1), np.log(0.4), 60))
        extra_grid = np.linspace(0.0, 0.15, 31) if kind == Kind.tail else np.array([0.0])
        level_grid = np.linspace(-0.05, 0.25, 300) if kind == Kind.flat else np.linspace(-0.04, 0.04, 90)
        level, gain, extra = np.meshgrid(level_grid, gain_grid, extra_grid, indexing="ij")
        curve = level[..., None] + gain[..., None] * s[:, index] + extra[..., None] * e[:, index]
        squares = ((problem.rewards - curve) ** 2 / blocks.weight).sum(axis=-1)
        squares += problem.level_precision * level**2
        log_prior = 0.5 * np.log(problem.level_precision / (2 * np.pi)) + np.log(level_grid[1] - level_grid[0])
        if kind != Kind.flat:
            log_prior = log_prior + log_gain_prior(problem, gain, np.full(gain.shape, kind))
            log_prior = log_prior + np.log(np.log(gain_grid[1] / gain_grid[0]))
        power = len(problem.rewards) + 1
        if kind == Kind.tail:
            mean, precision = problem.extra_mean[kind], problem.extra_precision[kind]
            squares = squares + precision * (extra - mean) ** 2
            log_prior = log_prior + 0.5 * np.log(precision / (2 * np.pi)) + np.log(extra_grid[1])
            log_prior = log_prior - log_ndtr(mean * np.sqrt(precision) / blocks.noise)
            log_prior = log_prior + np.where(extra == 0, np.log(0.5), 0.0)
            power += 1
        for log_sd in log_noise:
            # The noise has a scaled inverse chi-squared prior, here by its logarithm.
            prior = -df * log_sd - 0.5 * df * blocks.noise**2 * np.exp(-2 * log_sd)
            mass.append(log_prior + prior - power * log_sd - 0.5 * squares * np.exp(-2 * log_sd))
        mass = np.array(mass)
        top = mass.max()
        weight = np.exp(mass - top)
        log_total.append(top + np.log(weight.sum()))
        levels.append((weight * level).sum() / weight.sum())
        gains.append((weight * gain).sum() / weight.sum())
    return np.array(log_total), np.array(levels), np.array(gains)


def test_evidence_is_the_integral_over_level_gain_extra_and_noise(problem, white):
    cells = candidates(*ROWS)
    found = evidence(problem, [white], cells, num_nodes=len(NODES)).log_mass[0]
    closed = np.log(np.exp(found - found.max()).sum(axis=0)) + found.max() - log_shape_prior(problem, cells)
    dense, _, _ = by_integration(problem, cells)
    # Both up to one constant; the sign of the extra is bounded at its typical noise.
    np.testing.assert_allclose(closed - closed[0], dense - dense[0], atol=0.06)


def test_several_runs_are_white_under_drift_misfit_spread_and_noise():
    compute, reward = run(0, num=9, reach=3.0)
    labels = np.arange(9) % 2
    blocks = make_blocks(make_points(compute, reward, run=labels), 0.4, 0.05)
    here, risen = (blocks.x, blocks.index, blocks.run), sigmoid(blocks.x, 0.5, -0.3)
    same = np.equal.outer(blocks.run, blocks.run)
    for c in all_covariances(blocks, lambda x: sigmoid(x, 0.5, -0.3)):
        total = np.diag(np.append(blocks.weight, blocks.start_weight))
        total[:-1, :-1] += c.drift * drifting(blocks, here, here, c.drift_length) + c.misfit**2 * departing(here, here)
        total[:-1, :-1] += c.spread**2 * same * np.outer(risen, risen)
        whiten = c.whitened(np.eye(len(total)))
        np.testing.assert_allclose(whiten @ total @ whiten.T, np.eye(len(total)), atol=1e-9)
        weight = next(each for *sizes, each in priors.DRIFTS if sizes == [c.drift, c.drift_length])
        unit = blocks.span / blocks.noise
        weight *= dict(priors.MISFITS)[round(c.misfit / unit, 6)]
        assert c.log_weight == pytest.approx(np.log(weight) - 0.5 * np.linalg.slogdet(total)[1])
        shared = np.random.default_rng(0).normal(size=(len(blocks.x), 3))
        share, explained = c.explained(shared)
        np.testing.assert_allclose(share, np.linalg.solve(total[:-1, :-1], shared), atol=1e-8)
        np.testing.assert_allclose(explained, np.einsum("ij,ij->j", shared, share), atol=1e-8)


def test_runs_that_rise_alike_are_no_recipe_without_a_rise():
    """Their noise is larger than their counts say, and the spread between runs is not: it is a share of the gain."""
    rng = np.random.default_rng(3)
    compute = np.tile(np.linspace(0.02, 1.0, 60), 2)
    reward = 0.05 + 0.85 / (1 + (0.08 / compute) ** 1.2) + 0.026 * rng.normal(size=120)
    curve = fit(compute, np.clip(reward, 0, 1), start=0.05, run=np.arange(120) // 60, num_samples=2048)
    assert curve.probability(Kind.flat) == 0
    assert curve.interval("ceiling")[0] > 0.7
    same = fit(compute, 0.3 + 0.01 * rng.normal(size=120), run=np.arange(120) // 60)
    assert same.verdict == Verdict.FLAT


def test_a_flat_candidate_has_the_evidence_of_a_students_t(problem, white):
    cells = candidates((Kind.flat, 1.0, 1.0, 1.0))
    found = evidence(problem, [white], cells, num_nodes=len(NODES)).log_mass[0]
    y, df = problem.rewards, problem.noise_df
    cover = np.diag(problem.blocks.weight) + 1.0 / problem.level_precision
    squares = df * problem.blocks.noise**2 + y @ np.linalg.solve(cover, y)
    expected = -0.5 * (df + len(y)) * np.log(squares) - 0.5 * np.linalg.slogdet(cover)[1]
    expected += 0.5 * np.log(problem.blocks.weight).sum()
    assert np.log(np.exp(found - found.max()).sum()) + found.max() == pytest.approx(expected, abs=1e-8)


def test_draws_of_level_and_gain_are_those_of_a_grid(problem, white):
    cells = candidates(ROWS[0])
    draws = _draw(problem, cells, evidence(problem, [white], cells, num_nodes=len(NODES)), np.random.default_rng(0))
    _, (level,), (gain,) = by_integration(problem, cells)
    assert draws.gain.mean() == pytest.approx(gain, abs=0.15 * draws.gain.std())
    assert (draws.level - problem.centre).mean() == pytest.approx(level, abs=0.15 * draws.level.std())
    # Level and gain pull against each other.
    assert np.corrcoef(draws.level, draws.gain)[0, 1] < -0.2


@pytest.mark.parametrize("unit", [1e-3, 1e20])
def test_the_unit_of_compute_does_not_matter(unit: float):
    compute, reward = run(1, num=25)
    one, other = fit(compute, reward, start=0.4), fit(unit * compute, reward, start=0.4)
    assert other.params["midpoint"] == pytest.approx(unit * one.params["midpoint"], rel=1e-6)
    assert other.interval("ceiling") == pytest.approx(one.interval("ceiling"), abs=1e-6)
    assert other.verdict == one.verdict


@pytest.mark.parametrize(("scale", "zero"), [(1e-3, 0.0), (100.0, -260.0)])
def test_the_unit_of_an_unbounded_reward_does_not_matter(scale: float, zero: float):
    compute, reward = run(1, num=25)
    one = fit(compute, reward, start=0.4, bounds=None)
    other = fit(compute, zero + scale * reward, start=zero + scale * 0.4, bounds=None)
    assert other.params["ceiling"] == pytest.approx(zero + scale * one.params["ceiling"], abs=1e-6 * scale)
    assert other.margin == pytest.approx(scale * one.margin, rel=1e-6)
    assert other.verdict == one.verdict


def test_the_order_of_points_does_not_matter():
    compute, reward = run(1, num=25)
    order = np.random.default_rng(0).permutation(25)
    assert fit(compute[order], reward[order]).params == fit(compute, reward).params
