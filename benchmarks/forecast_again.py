"""Sealed forecasts made again with the present version, from the evaluations that each was made from.

`python benchmarks/forecast_again.py SEALS RUN...`: SEALS is a folder of sealed forecasts, each RUN a run folder whose
name is that of a sealed log. What this prints is not sealed: the runs have ended, and whoever wrote the present version
may have seen them.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.analysis.results import FitOptions
from scalerl.curves import fit
from scalerl.joint.seal import SealScore, opened, score_sealed, sealed_curve
from scalerl.logs.read import read_tables
from scalerl.logs.series import Selection, Series, series_from

LEVEL = 0.9
MISS = 20.0  # what a reward outside a 90 % interval costs, over what its width does


def interval_score(curve: dict, data: Series) -> float:
    """Mean width of the 90 % interval, plus 20 times what falls outside, over the evaluations since."""
    later = data.compute > curve["largest_compute"] * (1 + 1e-9)
    places, ends = np.log(curve["path"]["compute"]), curve["path"]["intervals"][f"{LEVEL:g}"]
    at, seen = np.log(data.compute[later]), data.reward[later]
    low, high = (np.interp(at, places, ends[end]) for end in ("low", "high"))
    return float(np.mean(high - low + MISS * (np.maximum(low - seen, 0) + np.maximum(seen - high, 0))))


def again(curve: dict, data: Series, options: FitOptions) -> dict:
    """Return the forecast of a sealed curve as the present version makes it."""
    then = data.compute <= curve["largest_compute"] * (1 + 1e-9)
    picked = {"compute": data.compute[then], "reward": data.reward[then], "evaluation": None, "run": None}
    samples = None if data.num_samples is None else data.num_samples[then]
    early = replace(data, **picked, num_samples=samples)
    done = fit(early.compute, early.reward, **options.of(early))
    return sealed_curve(curve["name"], done, [row["compute"] for row in curve["at"]], early.compute, early.reward)


def cells(score: SealScore, curve: dict, data: Series) -> str:
    last = curve["at"][-1]["reward"]
    end = f"{last['value']:.3f} [{last['low']:.3f}, {last['high']:.3f}]"
    errors = f"{score.rmse:.3f}, {score.bias:+.3f}"
    return f"{errors} | {score.coverage[LEVEL]:.0%} | {interval_score(curve, data):.3f} | {end}"


def main() -> None:
    if len(sys.argv) < 3 or not Path(sys.argv[1]).is_dir():
        sys.exit(f"usage: {Path(sys.argv[0]).name} SEALS RUN...: SEALS must be a folder")
    folders = {Path(name).resolve().name: name for name in sys.argv[2:]}
    part = "RMSE, bias | in 90 % | score | at the end"
    print(f"| run | sealed: {part} | present version: {part} | measured there |\n|{'---|' * 10}")
    totals = np.zeros((2, 2))
    num = 0
    for path in sorted(Path(sys.argv[1]).glob("*.json")):
        content = opened(path.read_text(encoding="utf-8"), str(path))
        selection: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in content["selection"].items()
        }
        logs = [folders[Path(log).name] for log in content["logs"]]
        series = series_from(read_tables(logs), Selection(**selection))
        options = FitOptions(**content["options"])
        for curve in content["curves"]:
            data = series[0] if len(series) == 1 else next(each for each in series if each.name == curve["name"])
            versions = (curve, again(curve, data, options))
            scores = [score_sealed(version, data.compute, data.reward) for version in versions]
            new = scores[0].num_new - scores[0].beyond
            num += new
            for row, version, score in zip(totals, versions, scores, strict=True):
                row += new * np.array([score.coverage[LEVEL], interval_score(version, data)])
            measured = scores[0].at[-1].measured
            texts = [cells(score, version, data) for version, score in zip(versions, scores, strict=True)]
            print(
                f"| {curve['name']} | {' | '.join(texts)} | {'-' if measured is None else f'{measured:.3f}'} |",
                flush=True,
            )
    names = ("as sealed", "with the present version")
    parts = [f"{row[0]:.0%} inside {name} (score {row[1]:.3f})" for name, row in zip(names, totals / num, strict=True)]
    print(f"\n{num} evaluations: {', '.join(parts)}.")


if __name__ == "__main__":
    main()
