import numpy as np

from scalerl.training.rollout.noise import uniforms


def test_a_number_depends_on_seed_and_index_alone():
    seeds = np.array([3, 2**63 - 1, 0, 7], dtype=np.uint64)
    table = uniforms(seeds, np.arange(50)[:, None])
    assert table.shape == (50, 4)
    assert table[17, 1] == uniforms(seeds[1:2], np.array([17]))[0]
    np.testing.assert_array_equal(uniforms(seeds[::-1], np.arange(20, 30)[:, None]), table[20:30, ::-1])


def test_numbers_never_change():
    """A resumed run samples what it would have sampled."""
    numbers = uniforms(np.array([0, 1, 2**63 - 1], dtype=np.uint64), np.array([0, 1, 2]))
    assert (numbers * 2**24).astype(int).tolist() == [4727170, 6177195, 8356977]


def test_numbers_are_uniform_and_independent():
    seeds, indices = np.arange(300, dtype=np.uint64), np.arange(300)[:, None]
    table = uniforms(seeds, indices)
    assert table.dtype == np.float32
    assert table.min() >= 0
    assert table.max() <= 1 - 2.0**-24
    from scipy.stats import kstest  # here: every process of the tests would import it for a second

    assert kstest(table.ravel(), "uniform").pvalue > 1e-3
    for left, right in ((table[1:], table[:-1]), (table[:, 1:], table[:, :-1]), (table, table.T)):
        same = left is not table
        mask = np.ones(left.shape, bool) if same else ~np.eye(300, dtype=bool)
        assert abs(np.corrcoef(left[mask], right[mask])[0, 1]) < 0.015
