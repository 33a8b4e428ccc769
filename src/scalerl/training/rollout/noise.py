"""The random numbers with which tokens are sampled: one per token, from the request's seed and the token's index.

A counter-based generator (the splitmix64 finaliser, Steele et al. 2014). It has no state, so a token gets the same
number in any slot, batch and order, and after a restart.
"""

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniforms(seeds: NDArray[np.uint64], indices: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return numbers in [0, 1) with 24 random bits, as many as a float32 holds; seeds and indices broadcast."""
    with np.errstate(over="ignore"):  # The generator relies on 64-bit overflow.
        bits = _mix(_mix(seeds + _GOLDEN) + indices.astype(np.uint64) * _GOLDEN)
    bits >>= np.uint64(40)
    numbers = bits.astype(np.float32)
    numbers *= np.float32(2.0**-24)
    return numbers


def _mix(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix the bits in place, because a poll of a large engine has tens of thousands of numbers."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits ^= bits >> np.uint64(shift)
        bits *= np.uint64(factor)
    bits ^= bits >> np.uint64(31)
    return bits
