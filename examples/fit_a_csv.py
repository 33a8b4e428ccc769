"""Fit the runs in a CSV, compare the recipes and forecast: python examples/fit_a_csv.py [runs.csv]"""

import sys
from importlib.resources import files

import scalerl

path = sys.argv[1] if len(sys.argv) > 1 else str(files("scalerl") / "assets" / "example_runs.csv")
runs = scalerl.read(path, by="recipe")
print(runs.fit(), runs.compare(), runs.forecast(at=100), sep="\n\n")
