"""Pictures of results that are not curves of a table.

python benchmarks/pictures.py sealed SEALED.json PICTURE        forecasts in a sealed file, curve by curve
python benchmarks/pictures.py coverage GATE.json PICTURE        later evaluations inside 90 % intervals
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

COLOURS = ("#56B4E9", "#0072B2", "#D55E00", "#009E73")
GREY = "#666666"


def figure_of(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=140, layout="constrained")


def sealed(source: str, target: str) -> None:
    curves = json.loads(Path(source).read_text())["curves"]
    figure = figure_of(9.5, 4.8)
    panels = figure.subplots(2, len(curves) // 2, sharex=True).T.ravel()
    for axes, curve in zip(panels, sorted(curves, key=lambda each: each["name"]), strict=True):
        path, seen = curve["path"], curve["largest_compute"]
        compute, middle = np.array(path["compute"]), np.array(path["value"])
        axes.plot(compute, middle, "--", color=COLOURS[1], linewidth=1.2)
        rewards = [each["reward"] for each in curve["at"]]
        middles, lows, highs = (np.array([each[key] for each in rewards]) for key in ("value", "low", "high"))
        axes.errorbar([each["compute"] for each in curve["at"]], middles, [middles - lows, highs - middles], fmt="o",
                      color=COLOURS[2], markersize=4, capsize=3)  # fmt: skip
        axes.set_title(curve["name"], loc="left", fontsize=9)
        axes.set_xlim(0.95 * seen, 1.04 * max(each["compute"] for each in curve["at"]))
    figure.supxlabel("step; the data end where the lines begin", fontsize=9)
    figure.supylabel("score", fontsize=9)
    save(figure, target)


def coverage(source: str, target: str) -> None:
    rows = [row for row in json.loads(Path(source).read_text())["rows"] if row["new_covered"] is not None]
    rows = [row for row in rows if row["cut"] != "whole"]
    names = list(dict.fromkeys(row["population"] for row in rows))
    figure = figure_of(7.5, 0.9 + 0.21 * len(names))
    axes = figure.subplots()
    axes.axvline(0.9, color=GREY, linewidth=0.9)
    for place, (cut, label) in enumerate((("tenth", "a tenth"), ("quarter", "a quarter"), ("half", "half"))):
        held = {row["population"]: row["new_covered"] for row in rows if row["cut"] == cut}
        here = [name for name in names if name in held]
        axes.plot([held[name] for name in here], [names.index(name) for name in here], "o", markersize=5,
                  color=COLOURS[place], label=f"seen {label}")  # fmt: skip
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="y", color="#E4E4E4", linewidth=0.6)
    axes.set_xlabel("share of later evaluations inside 90 % intervals")
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    save(figure, target)


def save(figure: Any, target: str) -> None:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_axisbelow(True)
    figure.savefig(target, facecolor="white")


PICTURES: dict[str, Callable[[str, str], None]] = {each.__name__: each for each in (sealed, coverage)}

if __name__ == "__main__":
    match sys.argv[1:]:
        case (kind, source, target) if kind in PICTURES:
            PICTURES[kind](source, target)
        case _:
            raise SystemExit(__doc__)
