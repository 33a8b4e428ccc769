"""Draw docs/model.png: what each part of the model of a curve adds.

python docs/make_model_picture.py
"""

from pathlib import Path

import numpy as np

from scalerl.curves import FORMS, Kind, priors
from scalerl.curves.model import extra_part, main_rise, matern

LEVEL, GAIN, END = 0.3, 0.4, 1.0
TITLES = {
    Kind.rise: "rise: one sigmoid",
    Kind.second: "second: an early rise before it",
    Kind.tail: "tail: growth goes on slowly",
    Kind.late: "late: nothing before some compute",
    Kind.fall: "fall: from some place on",
    Kind.flat: "flat: no rise",
}
PLACES = {Kind.second: np.log(0.06), Kind.tail: np.log(1.2), Kind.late: np.log(0.45), Kind.fall: 0.6}
EXTRA = {Kind.second: 0.12, Kind.tail: 0.12, Kind.fall: 0.15}


def curve(kind: Kind, compute: np.ndarray) -> np.ndarray:
    x = np.log(compute)
    place = PLACES.get(kind, 0.0)
    rise = main_rise(x, FORMS["sigmoid"], np.full(len(x), kind), np.log(2.0), np.log(0.35), place)
    extra = extra_part(x, np.full(len(x), kind), place, 0.5)
    return LEVEL + GAIN * rise + EXTRA.get(kind, 0.0) * extra


def main() -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rng = np.random.default_rng(4)
    figure, axes = plt.subplots(3, 3, figsize=(10, 7.4), sharex=True, sharey=True, layout="constrained")
    compute = np.linspace(0.005, 2.0, 400)
    seen = np.linspace(0.03, END, 30)
    for axis, (kind, title) in zip(axes.flat, TITLES.items(), strict=False):
        axis.plot(compute, curve(Kind.rise, compute), color="0.75", linewidth=1)
        axis.plot(compute, curve(kind, compute), color="tab:blue")
        axis.plot(seen, curve(kind, seen) + 0.012 * rng.standard_normal(len(seen)), ".", color="0.3", markersize=4)
        axis.set_title(title, fontsize=10)
    plain = curve(Kind.rise, compute)
    steps = np.arange(len(seen))
    factor = np.linalg.cholesky(np.exp(-np.abs(np.subtract.outer(steps, steps)) / 6.0) + 1e-9 * np.eye(len(seen)))
    around = matern(np.abs(np.subtract.outer(np.log(compute), np.log(compute)))) + 1e-8 * np.eye(len(compute))
    bend = np.linalg.cholesky(around) @ rng.standard_normal((len(compute), 3))
    beyond = np.sqrt(np.log2(np.maximum(compute / END, 1.0)))
    drift, misfit, leaves = axes.flat[6:]
    for _ in range(2):
        drift.plot(seen, curve(Kind.rise, seen) + 0.02 * factor @ rng.standard_normal(len(seen)), ".-", markersize=4)
    drift.set_title("drift: evaluations move slowly about the curve", fontsize=10)
    misfit.plot(compute, plain[:, None] + 0.05 * GAIN * bend, linewidth=1)
    misfit.set_title("misfit: no sigmoid is exact", fontsize=10)
    leaves.plot(compute, plain, color="tab:blue")
    wide = 1.645 * priors.DIVERGENCE * GAIN * beyond
    leaves.fill_between(compute, plain - wide, plain + wide, alpha=0.25)
    leaves.set_title("beyond the data: it may leave its shape", fontsize=10)
    for axis in axes.flat:
        axis.axvline(END, color="0.8", linestyle=":", zorder=0)
        axis.set_ylim(0.2, 0.9)
    figure.supxlabel("compute, in units of the largest measured (dotted line)", fontsize=10)
    figure.supylabel("reward", fontsize=10)
    figure.savefig(Path(__file__).with_name("model.png"), dpi=110)


if __name__ == "__main__":
    main()
