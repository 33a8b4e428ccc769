"""Draw docs/model.png: what each part of the model of a curve adds.

python docs/make_model_picture.py
"""

from pathlib import Path

import numpy as np

from scalerl.forecast.curves import priors
from scalerl.forecast.curves.forms import sigmoid
from scalerl.forecast.curves.problem import fallen_share

LEVEL, GAIN, END, DROP = 0.3, 0.4, 1.0, 0.15
EXPONENT, MIDPOINT = np.log(2.0), np.log(0.35)


def rise(compute: np.ndarray, skew: float = 0.0) -> np.ndarray:
    return LEVEL + GAIN * sigmoid(np.log(compute), EXPONENT, MIDPOINT, skew)


def main() -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rng = np.random.default_rng(4)
    figure, axes = plt.subplots(2, 4, figsize=(12, 5.2), sharex=True, sharey=True, layout="constrained")
    compute = np.linspace(0.005, 2.0, 400)
    seen = np.linspace(0.03, END, 30)

    def fall(length: float):
        return lambda where: rise(where) - DROP * fallen_share(where, np.array(0.6), np.array(length))

    kinds = {
        "flat: no rise": lambda where: np.full(len(where), LEVEL),
        "rise: the paper's sigmoid": rise,
        "rise: a fast start, a slow end": lambda where: rise(where, 2.0),
        "rise: a slow start, a fast end": lambda where: rise(where, -1.2),
        "fall: at once, or over the rest of the run": fall(priors.FALL_LENGTHS[0]),
    }
    for axis, (title, curve) in zip(axes.flat, kinds.items(), strict=False):
        axis.plot(compute, rise(compute), color="0.75", linewidth=1)
        axis.plot(compute, curve(compute), color="tab:blue")
        axis.plot(seen, curve(seen) + 0.012 * rng.standard_normal(len(seen)), ".", color="0.3", markersize=4)
        axis.set_title(title, fontsize=10)
    axes.flat[4].plot(compute, fall(priors.FALL_LENGTHS[1])(compute), color="tab:blue", linestyle="--")
    drift, misfit, leaves = axes.flat[5:]
    steps, log_compute = np.arange(len(seen)), np.log(compute)
    factor = np.linalg.cholesky(np.exp(-np.abs(np.subtract.outer(steps, steps)) / 6.0) + 1e-9 * np.eye(len(seen)))
    for _ in range(2):
        drift.plot(seen, rise(seen) + 0.02 * factor @ rng.standard_normal(len(seen)), ".-", markersize=4)
    drift.set_title("drift: evaluations move slowly", fontsize=10)
    apart = np.sqrt(3.0) * np.abs(np.subtract.outer(log_compute, log_compute)) / priors.MISFIT_LENGTH
    around = (1.0 + apart) * np.exp(-apart) + 1e-8 * np.eye(len(compute))
    bend = np.linalg.cholesky(around) @ rng.standard_normal((len(compute), 3))
    moves = np.clip(np.gradient(rise(compute), log_compute) / GAIN * 2, priors.LEAST_MOVEMENT, 1.0)
    misfit.plot(compute, rise(compute)[:, None] + 0.05 * GAIN * moves[:, None] * bend, linewidth=1)
    misfit.set_title("misfit: no sigmoid is exact", fontsize=10)
    leaves.plot(compute, rise(compute), color="tab:blue")
    last = float(np.diff(rise(np.array([END / 2, END])))[0])
    wide = 1.645 * priors.DIVERGENCE * last * np.sqrt(np.log2(np.maximum(compute / END, 1.0)))
    leaves.fill_between(compute, rise(compute) - wide, rise(compute) + wide, alpha=0.25)
    leaves.set_title("beyond the data: it may leave its shape", fontsize=10)
    for axis in axes.flat:
        axis.axvline(END, color="0.8", linestyle=":", zorder=0)
        axis.set_ylim(0.2, 0.85)
    figure.supxlabel("compute, in units of the largest measured (dotted line)", fontsize=10)
    figure.supylabel("reward", fontsize=10)
    figure.savefig(Path(__file__).with_name("model.png"), dpi=110)


if __name__ == "__main__":
    main()
