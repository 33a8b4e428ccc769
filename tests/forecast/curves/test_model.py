"""The model's closed forms against numerical integration, and its sums over shapes against brute force."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from simulate import run

from scalerl.forecast.curves import FORMS, Fit, Kind, decide, fit, grid, model, priors, sample
from scalerl.forecast.curves.cells import integrate_gain, log_sum, make_cells, prepare
from scalerl.forecast.curves.covariances import kernels, make_groups, places_of
from scalerl.forecast.curves.data import make_blocks, make_points
from scalerl.forecast.curves.forms import sigmoid
from scalerl.forecast.curves.model import posterior
from scalerl.forecast.curves.normal import chi_squared_quantile
from scalerl.forecast.curves.priors import Prior
from scalerl.forecast.curves.problem import NO_FALL, make_problem
from scalerl.forecast.curves.sample import draw, even_points, share_out
from scalerl.forecast.logs import Selection, read


@pytest.fixture(scope="module")
def problem():
    compute, reward = run(0, num=14, reach=3.0)
    reward[10:] -= 0.03
    blocks = make_blocks(make_points(compute, reward, bounds=None), None, None)
    return make_problem(blocks, FORMS["sigmoid"], priors.WEAK, None, priors.FALL)


@pytest.fixture(scope="module")
def prepared(problem):
    return prepare(problem)


SHAPE = np.array([[np.log(1.9)], [np.log(0.33)]])


def weighed(prepared, covariance: int, course: int):
    cells = make_cells(prepared, SHAPE, np.array([covariance]), np.array([course]))
    return integrate_gain(prepared, cells.take(*np.zeros((3, 1), dtype=int)), SHAPE, np.zeros(1))


def covariance_of(problem, groups, number: int) -> np.ndarray:
    """The covariance of this number, in units of the noise's variance, and its weight."""
    blocks = problem.blocks
    rows = [(each, size) for each in groups for size in each.size]
    group, size = rows[number]
    total = np.diag(blocks.weight)
    return total + size * kernels(blocks, places_of(blocks), places_of(blocks))[group.kernel]


def by_integration(problem, total: np.ndarray, course: int) -> tuple[float, float]:
    """The log mass of one cell by sums over dense grids of level, gain, drop and noise; and the mean gain."""
    blocks, gains = problem.blocks, problem.gains
    s = problem.rises(SHAPE)[:, 0]
    f = problem.falls()[:, course]
    inverse = np.linalg.inv(total)
    level = np.linspace(-0.12, 0.12, 61)
    gain = np.linspace(0.0, 0.5, 121)[1:]
    drop = np.linspace(0.0, 0.16, 41) if course != NO_FALL else np.zeros(1)
    levels, gain_grid, drops = np.meshgrid(level, gain, drop, indexing="ij")
    columns = np.stack([np.ones(len(s)), s, f], axis=1)
    pull, gram = columns.T @ inverse @ problem.rewards, columns.T @ inverse @ columns
    values = np.stack([levels, gain_grid, drops])
    squares = problem.rewards @ inverse @ problem.rewards - 2.0 * np.tensordot(pull, values, axes=1)
    squares = squares + np.einsum("i...,ij,j...->...", values, gram, values) + problem.level_precision * levels**2
    log_noise = np.log(blocks.noise) + np.linspace(-1.5, 2.5, 33)
    mass = []
    for log_sd in log_noise:
        sd = np.exp(log_sd)
        # Each prior is in units of the noise, which has a scaled inverse chi-squared prior.
        log_prior = -problem.noise_df * log_sd - 0.5 * problem.noise_df * (blocks.noise / sd) ** 2
        log_prior += 0.5 * np.log(problem.level_precision) - log_sd - len(problem.rewards) * log_sd
        density = sum(
            np.exp(weight - 0.5 * precision * ((gain_grid - centre) / sd) ** 2) / sd
            for weight, precision, centre in zip(gains.log_weight, gains.precision, gains.mean, strict=True)
        )
        log_mass = log_prior + np.log(density) - 0.5 * squares / sd**2
        if course != NO_FALL:
            log_mass = log_mass + np.log(2.0 * np.sqrt(problem.drop_precision)) - log_sd
            log_mass = log_mass - 0.5 * problem.drop_precision * (drops / sd) ** 2
            # The trapezoid's ends.
            log_mass = log_mass + np.where(drops == 0, np.log(0.5), 0.0)
        mass.append(log_mass)
    mass = np.array(mass)
    weight = np.exp(mass - mass.max())
    volume = (level[1] - level[0]) * (gain[1] - gain[0]) * (drop[1] - drop[0] if len(drop) > 1 else 1.0)
    return float(np.log(weight.sum() * volume) + mass.max()), float((weight * gain_grid).sum() / weight.sum())


@pytest.mark.parametrize("covariance", [0, 11])
def test_cells_are_weighed_as_by_integration(problem, prepared, covariance: int):
    courses = (NO_FALL, 5)
    total = covariance_of(problem, prepared.groups, covariance)
    closed, dense = [], []
    for course in courses:
        rows = weighed(prepared, covariance, course)
        # What the covariance and the course stand for is not part of the integral.
        prior = problem.courses.log_weight[course]
        closed.append(log_sum(rows.log_mass) - prior)
        log_dense, mean = by_integration(problem, total, course)
        # The normal density of a drop has a constant of its own.
        dense.append(log_dense - (0.0 if course == NO_FALL else 0.5 * np.log(2 * np.pi)))
        drawn = draw(prepared, rows, 4000)
        assert drawn.gain.mean() == pytest.approx(mean, abs=0.15 * drawn.gain.std())
    # The limit of the drop is taken at the likely gain: a few per cent.
    assert closed[1] - closed[0] == pytest.approx(dense[1] - dense[0], abs=0.12)


def test_wanders_are_diagonal_under_their_rotation():
    compute, reward = run(0, num=9, reach=3.0)
    blocks = make_blocks(make_points(compute, reward, run=np.arange(9) % 2), 0.4, 0.05)
    risen = sigmoid(blocks.x, 0.5, -0.3)
    apart = np.equal.outer(blocks.run, blocks.run) - 0.5
    tables = {0: [(0.0, priors.INDEPENDENT), *priors.DRIFTS]} | {
        number: list(priors.DRIFTS) for number in range(1, len(priors.DRIFT_LENGTHS))
    }
    for group in make_groups(blocks, risen):
        kernel = kernels(blocks, places_of(blocks), places_of(blocks))[group.kernel]
        for number, size in enumerate(group.size):
            total = np.diag(np.append(blocks.weight, blocks.start_weight))
            total[:-1, :-1] += size * kernel + group.spread**2 * apart * np.outer(risen, risen)
            white = np.sqrt(group.shrink[number])[:, None] * group.rotate
            np.testing.assert_allclose(white @ total @ white.T, np.eye(10), atol=1e-8)
            if group.kernel in tables:
                weight = tables[group.kernel][number][1]
                expected = np.log(weight) - 0.5 * np.linalg.slogdet(total)[1]
                assert group.log_weight[number] == pytest.approx(expected)


# Luck: none -----------------------------------------------------------------------------------------------------------


def kinds(seed: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Compute and reward of runs that were hard to sum over: unfinished, precise, flat and falling ones."""
    rng = np.random.default_rng(seed)
    compute = np.linspace(0.1, 4.0, 30)
    noise = 0.004 * rng.standard_normal(30)
    rewards = {
        "unfinished": sigmoid(np.log(compute), np.log(1.6), np.log(5.0)),
        "late": sigmoid(np.log(compute), np.log(2.5), np.log(1.0)),
        "precise": sigmoid(np.log(compute), np.log(2.0), np.log(0.5)) - 4.5 * noise,
        "flat": np.zeros(30),
        "fall": sigmoid(np.log(compute), np.log(2.0), np.log(0.5)) - 0.05 * (compute > 3.0),
    }
    return {name: (compute, 0.4 + 0.2 * reward + noise) for name, reward in rewards.items()}


def answers(curve: Fit) -> np.ndarray:
    """The ceiling with its interval, and the probability of each kind."""
    return np.array([curve.params["ceiling"], *curve.interval("ceiling"), *map(curve.probability, Kind)])


@pytest.mark.parametrize("name", kinds(0))
def test_another_seed_does_not_change_the_answer(name: str):
    """It moves the noise of new evaluations, and that hardly."""
    curves = [fit(*kinds(0)[name], start=0.4, seed=seed) for seed in range(5)]
    assert all(decide(curve) == decide(curves[0]) for curve in curves)
    assert len({tuple(answers(curve)) for curve in curves}) == 1
    ends = np.array([curve.new_interval([8.0]) for curve in curves])[..., 0]
    assert 0 < np.ptp(ends, axis=0).max() < 0.1 * np.ptp(ends[0])
    assert ends[0].tolist() == [float(end[0]) for end in fit(*kinds(0)[name], start=0.4).new_interval([8.0])]


@pytest.mark.parametrize("name", kinds(0))
def test_other_points_hardly_change_the_answer(name: str, monkeypatch: pytest.MonkeyPatch):
    """Draws lie at points that are evenly spread, and there are enough of them that it does not matter where."""
    every = []
    for rotation in (0.0, 0.13, 0.41, 0.77):
        monkeypatch.setattr(sample, "ROTATION", rotation)
        every.append(answers(fit(*kinds(0)[name], start=0.4)))
    width = np.mean([row[2] - row[1] for row in every])
    assert (np.ptp(every, axis=0)[:3] < 0.1 * width).all()
    assert (np.ptp(every, axis=0)[3:] <= 1e-3).all()


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", kinds(0))
@pytest.mark.slow
def test_the_sum_is_that_of_brute_force(name: str, seed: int, monkeypatch: pytest.MonkeyPatch):
    """Against some hundred times the boxes, every course of a fall, and ten times the draws."""
    data = kinds(seed)[name]
    mine = answers(fit(*data, start=0.4))
    more = {"FINE": 1 / 10_000, "RESOLVED": 1 / 1000, "AT_ONCE": 300, "MOST_ROUNDS": 60}
    more |= {"NUM_FIRST": 45, "NUM_CELLS": 60_000, "MOST_COURSES": 1000}
    for constant, value in more.items():
        monkeypatch.setattr(grid, constant, value)
    monkeypatch.setattr(model, "NUM_DRAWS", 20_000)
    brute = answers(fit(*data, start=0.4))
    width = brute[2] - brute[1]
    assert (np.abs(mine - brute)[:3] < 0.1 * width).all()
    assert (np.abs(mine - brute)[3:] < 0.05).all()


def test_boxes_add_up_to_the_prior():
    """With a mass that is the prior's, which is 1, however boxes are split."""
    boxes = grid.first_boxes()
    for _ in range(6):
        boxes = replace(boxes, log_density=grid.log_prior(boxes.centre))
        assert log_sum(boxes.log_mass) == pytest.approx(0.0, abs=0.01)
        nearest = np.argsort(((boxes.centre - [1.1, -0.4]) ** 2).sum(axis=1))[:9]
        boxes = grid.replaced(boxes, nearest, grid.parts_of(boxes, nearest))


def test_thinned_cells_stand_for_all():
    log_mass = np.log(np.random.default_rng(0).gamma(0.1, size=20_000) + 1e-12)
    which, log_count = grid.thinned(log_mass)
    assert len(which) < 1.2 * grid.NUM_CELLS
    assert len(np.unique(which)) == len(which)
    assert log_sum(log_mass[which] + log_count) == pytest.approx(log_sum(log_mass))
    heavy = np.argsort(log_mass)[-10:]
    assert np.isin(heavy, which).all()


def test_points_are_even():
    points = even_points(500, 7)
    assert np.diff(points[0]) == pytest.approx(1 / 500)
    assert np.floor(500 * points[0]).tolist() == list(range(500))
    for row in points[1:]:
        assert (np.abs(np.histogram(row, bins=20, range=(0, 1))[0] - 25) <= 3).all()
    assert share_out(np.log(np.array([0.25, 1e-300, 0.75])), 10).tolist() == [2, 0, 8]


def test_quantiles_of_the_noise():
    from scipy.stats import chi2

    share = np.array([0.05, 0.3, 0.5, 0.95])
    for df in (8.0, 40.0):
        assert chi_squared_quantile(df, share) == pytest.approx(chi2.ppf(share, df), rel=5e-3)


# What the model says --------------------------------------------------------------------------------------------------


def test_runs_that_rise_alike_make_a_recipe_that_rises():
    """Their noise is larger than their counts say, and the spread between runs is not: it is a share of the gain."""
    rng = np.random.default_rng(3)
    compute = np.tile(np.linspace(0.02, 1.0, 60), 2)
    reward = 0.05 + 0.85 / (1 + (0.08 / compute) ** 1.2) + 0.026 * rng.normal(size=120)
    curve = fit(compute, np.clip(reward, 0, 1), start=0.05, run=np.arange(120) // 60, num_samples=2048)
    assert curve.probability(Kind.flat) == 0
    assert curve.interval("ceiling")[0] > 0.7


def test_precise_data_are_found():
    """The posterior is a hundred million times smaller than the prior."""
    compute = np.tile(np.linspace(0.05, 4.0, 60), 2)
    noise = 3e-4 * np.random.default_rng(0).standard_normal(120)
    curve = fit(compute, 0.2 + 0.6 / (1 + compute**-2.6) + noise, start=0.2, run=np.repeat([0, 1], 60))
    assert curve.params["ceiling"] == pytest.approx(0.8, abs=0.01)
    assert curve.params["exponent"] == pytest.approx(2.6, abs=0.15)
    assert curve.params["midpoint"] == pytest.approx(1.0, abs=0.02)


def test_what_others_say_of_the_gain_counts():
    compute, reward = run(0, num=10, reach=0.7)
    blocks = make_blocks(make_points(compute, reward), 0.4, 0.0)
    told = Prior(log_share=(np.log(1 / 3), 0.05), has_heavy_tails=True)
    weak, pooled = posterior(blocks), posterior(blocks, prior=told)
    assert np.ptp(np.quantile(pooled.draws.gain, [0.05, 0.95])) < np.ptp(np.quantile(weak.draws.gain, [0.05, 0.95]))
    assert np.median(pooled.draws.gain) == pytest.approx(0.2, abs=0.03)


def test_the_path_follows_what_the_curve_does_not():
    bump, elsewhere, wrong = [], [], []
    for seed in range(5):
        compute, reward = run(seed, num=40, reach=8.0, noise=0.002)
        raised = 0.02 * ((np.arange(40) >= 20) & (np.arange(40) < 28))
        drawn = fit(compute, reward + raised, start=0.4).drawn
        path = np.median(drawn.path(), axis=0)
        off = path - np.median(drawn.curve(compute), axis=0)
        bump.append(off[22:26].mean())
        elsewhere.append(abs(off[:15]).mean())
        wrong.append(abs(path - run(seed, num=40, reach=8.0, noise=0.0)[1] - raised).mean())
    assert np.mean(bump) > 0.004
    assert np.mean(elsewhere) < 0.003
    assert np.mean(wrong) < 0.002


@pytest.mark.parametrize("unit", [1e-3, 1e20])
def test_the_unit_of_compute_does_not_matter(unit: float):
    compute, reward = run(1, num=25)
    one, other = fit(compute, reward, start=0.4), fit(unit * compute, reward, start=0.4)
    assert other.params["midpoint"] == pytest.approx(unit * one.params["midpoint"], rel=1e-6)
    assert other.interval("ceiling") == pytest.approx(one.interval("ceiling"), abs=1e-6)


@pytest.mark.parametrize(("scale", "zero"), [(1e-3, 0.0), (100.0, -260.0)])
def test_the_unit_of_an_unbounded_reward_does_not_matter(scale: float, zero: float):
    compute, reward = run(1, num=25)
    one = fit(compute, reward, start=0.4, bounds=None)
    other = fit(compute, zero + scale * reward, start=zero + scale * 0.4, bounds=None)
    assert other.params["ceiling"] == pytest.approx(zero + scale * one.params["ceiling"], abs=1e-5 * scale)


def test_the_order_of_points_does_not_matter():
    compute, reward = run(1, num=25)
    order = np.random.default_rng(0).permutation(25)
    assert fit(compute[order], reward[order]).params == fit(compute, reward).params


@pytest.mark.parametrize("unit", [1.0, 3.7e17])
def test_neither_the_names_of_runs_nor_a_unit_decide_anything(unit: float):
    """Runs that differ only in the spread between them have one ceiling: errors of rounding must not order them."""
    rng = np.random.default_rng(11)
    compute = np.tile(np.linspace(0.2, 5.0, 20), 3)
    names = np.repeat(["a", "b", "c"], 20)
    rise = np.repeat(0.3 + 0.02 * rng.standard_normal(3), 20) * compute**2 / (1.7 + compute**2)
    reward = 0.35 + rise + 0.008 * rng.standard_normal(60)
    one = fit(compute, reward, run=names, start=0.35)
    new_names = np.array([{"a": "z", "b": "x", "c": "y"}[name] for name in names])
    other = fit(unit * compute, reward, run=new_names, start=0.35)
    np.testing.assert_allclose(np.sort(other.drawn.ceiling), np.sort(one.drawn.ceiling), atol=1e-6)
    assert other.probability(Kind.fall) == one.probability(Kind.fall)


def test_runs_that_agree_have_no_spread():
    """Two runs that bend more sharply than a sigmoid do so together: that is the recipe's, not a spread of its runs."""
    table = Path(__file__).parents[3] / "docs" / "results" / "principles" / "truncated.csv.gz"
    selection = Selection(x="flops", y="reward", by=("arm",), seed="seed", where=(("arm", "drop-truncated"),))
    [log] = read([table], selection)
    both = fit(
        log.compute, log.reward, start=log.start, start_sd=log.start_sd, num_samples=log.num_samples, run=log.run
    )
    assert both.run_sd is not None
    assert both.run_sd < 0.02
    late = log.compute > 0.8 * both.scale
    assert float(both.predict(both.scale)) == pytest.approx(float(log.reward[late].mean()), abs=0.015)
