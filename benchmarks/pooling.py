"""Does pooling keep its promises? Coverage and error of ceilings, pooled and alone, over simulated studies of 8 arms.

    python benchmarks/pooling.py [--studies 500] [--spread 0.005|0.02|0.08|outlier|gap] [--seed 0] [--out rows.jsonl]
    python benchmarks/pooling.py --summary rows.jsonl [rows.jsonl ...]
    python benchmarks/pooling.py --published scalerl_published_curves.csv

Simulated: 30 evaluations with noise of sd 0.005 from a start of 0.4, exponents lognormal around 1.8 with 0.25,
midpoints lognormal with 0.3, every arm ends at 2 to 4 of its midpoints. Ceilings are N(0.6, spread); `outlier` has
seven with a spread of 0.005 and one 0.15 away, `gap` seven such and one 0.08 away, which is compared with another one.

Published: the held-out points of arXiv 2510.13786 with the shipped prior made without the figure that is scored and
without every series that draws the same run, and with the curves of a figure pooled among themselves.
"""

import csv
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np
import simulated_studies

from scalerl.forecast.curves import compare, fit, refit
from scalerl.forecast.curves.forecast import score
from scalerl.forecast.several import learn_prior, pool, read_prior

NUM_ARMS, NUM_EVALS, SD, START = 8, 30, 0.005, 0.4
AWAY = {"outlier": 0.15, "gap": 0.08}
KINDS = ("alone", "pooled")


def ceilings(rng: np.random.Generator, spread: str) -> np.ndarray:
    if spread in AWAY:
        values = rng.normal(0.6, 0.005, NUM_ARMS)
        values[0] = 0.6 + AWAY[spread] * rng.choice([-1, 1])
        return values
    return np.clip(rng.normal(0.6, float(spread), NUM_ARMS), START + 0.02, 0.95)


def study(rng: np.random.Generator, spread: str) -> dict:
    truth, fits = ceilings(rng, spread), {}
    for arm, ceiling in enumerate(truth):
        exponent = np.exp(rng.normal(np.log(1.8), 0.25))
        midpoint = np.exp(rng.normal(0.0, 0.3))
        compute = np.linspace(1 / NUM_EVALS, 1, NUM_EVALS) * midpoint * rng.uniform(2, 4)
        true = START + (ceiling - START) / (1 + (midpoint / compute) ** exponent)
        fits[str(arm)] = fit(compute, np.clip(true + rng.normal(0, SD, NUM_EVALS), 0, 1), start=START)
    row: dict = {"spread": spread}
    for kind, curves in zip(KINDS, (fits, pool(fits)), strict=True):
        ends = np.array([curve.interval("ceiling") for curve in curves.values()])
        row[kind] = {
            "covered": ((ends[:, 0] <= truth) & (truth <= ends[:, 1])).tolist(),
            "error": [curve.params["ceiling"] - true for curve, true in zip(curves.values(), truth, strict=True)],
            "width": (ends[:, 1] - ends[:, 0]).tolist(),
        }
        if spread == "gap":
            pair = compare({name: curves[name] for name in ("0", "1")}).pairs[0]
            higher = "0" if truth[0] > truth[1] else "1"
            row[kind]["found"] = pair.winner == higher
            row[kind]["wrong"] = pair.winner not in (None, higher)
    return row


def summary(rows: Sequence[dict]) -> None:
    head = (
        "spread",
        "studies",
        "covered: alone",
        "pooled",
        "the odd one",
        "RMSE: alone",
        "pooled",
        "ratio",
        "width ratio",
    )
    print(f"| {' | '.join([*head, 'gap found: alone', 'pooled'])} |")
    print("|---" * (len(head) + 2) + "|")
    for spread in dict.fromkeys(row["spread"] for row in rows):
        own = [row for row in rows if row["spread"] == spread]
        values = {kind: {key: np.array([row[kind][key] for row in own]) for key in own[0][kind]} for kind in KINDS}
        alone, pooled = values["alone"], values["pooled"]
        rmse = [float(np.sqrt(np.mean(side["error"] ** 2))) for side in (alone, pooled)]
        odd = f"{pooled['covered'][:, 0].mean():.1%}" if spread in AWAY else ""
        found = [f"{side['found'].mean():.1%}" if spread == "gap" else "" for side in (alone, pooled)]
        cells = [
            spread, len(own), f"{alone['covered'].mean():.1%}", f"{pooled['covered'].mean():.1%}", odd,
            f"{rmse[0]:.4f}", f"{rmse[1]:.4f}", f"{rmse[1] / rmse[0]:.2f}",
            f"{pooled['width'].mean() / alone['width'].mean():.2f}", *found,
        ]  # fmt: skip
        print(f"| {' | '.join(map(str, cells))} |")


# Published curves -----------------------------------------------------------------------------------------------------

SAME_RUN = {"fig2_prevalent": {"scalerl-8b"}, "loo1": {"scalerl-8b"}}
COLLAPSED = ("fig2_prevalent", "DeepSeek-GRPO")


def prior_without(figure: str):
    """The shipped prior without a figure's runs."""
    asset = json.loads((files("scalerl") / "assets" / "published_prior.json").read_text())
    drawn = {row["name"] for row in asset["members"] if figure in row["figures"]} | SAME_RUN.get(figure, set())
    return learn_prior([member for member in read_prior("published").members if member.name not in drawn])


def published(path: Path) -> None:
    with path.open() as file:
        rows = list(csv.DictReader(file))
    keys = dict.fromkeys((row["figure"], row["series"]) for row in rows)
    held = {(row["figure"], row["series"]) for row in rows if row["kind"] == "extended"}
    split = {key: _split(rows, key, key in held) for key in keys}
    fits = {
        key: fit(*early.T, start=0.399, skip_before=1500 if key in held else None) for key, (early, _) in split.items()
    }
    table, first_halves = [], []
    for figure in dict.fromkeys(figure for figure, _ in keys):
        prior = prior_without(figure)
        own = {series: curve for (name, series), curve in fits.items() if name == figure}
        pooled = pool(own)
        for series, curve in own.items():
            later = split[figure, series][1]
            scores = [score(each, *later.T) for each in (curve, refit(curve, pool=prior), pooled[series])]
            errors = [each.rmse if each is not None else float("nan") for each in scores]
            (table if (figure, series) in held else first_halves).append(((figure, series), errors))
    for title, lines in (("held-out points", table), ("first half fitted, second half scored", first_halves)):
        print(f"\n| {title} | alone | shipped prior | pooled in its figure |\n|---|---|---|---|")
        for key, errors in lines:
            print(f"| {'/'.join(key)} | {' | '.join(f'{error:.4f}' for error in errors)} |")
        stable = np.array([errors for key, errors in lines if key != COLLAPSED])
        print(f"| mean of the {len(stable)} stable | {' | '.join(f'{value:.4f}' for value in stable.mean(axis=0))} |")
        print(f"| worst of them | {' | '.join(f'{value:.4f}' for value in stable.max(axis=0))} |")
        all_of = np.array([errors for _, errors in lines])
        print(f"| median of all {len(lines)} | {' | '.join(f'{value:.4f}' for value in np.median(all_of, axis=0))} |")


def _split(rows: Sequence[dict], key: tuple[str, str], has_holdout: bool) -> tuple[np.ndarray, np.ndarray]:
    """The points to fit and those to score, by compute."""
    own = [row for row in rows if (row["figure"], row["series"]) == key]
    points = np.array(sorted((float(row["gpu_hours"]), float(row["pass_rate"]), row["kind"] == "train") for row in own))
    if has_holdout:
        is_early = points[:, 2] > 0
    else:
        is_early = points[:, 0] <= 0.5 * points[-1, 0]
    return points[is_early, :2], points[~is_early, :2]


if __name__ == "__main__":
    simulated_studies.main(__doc__, "0.005", study, summary, published)
