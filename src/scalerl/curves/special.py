"""Functions of scipy, which takes longer to load than all of `curves` does and is loaded with the first call."""

from scalerl.curves.forms import Array


def ndtri(probability: Array) -> Array:
    """Quantiles of the normal distribution."""
    from scipy import special

    return special.ndtri(probability)


def ndtr(value: Array) -> Array:
    """Distribution function of the normal distribution."""
    from scipy import special

    return special.ndtr(value)


def gammaincinv(shape: float, probability: Array) -> Array:
    """Quantiles of the gamma distribution."""
    from scipy import special

    return special.gammaincinv(shape, probability)
