"""Read and write prior files. `scalerl prior RUNS --out FILE` writes one and `--prior FILE` reads it; the package ships
one as well.

A file contains the members (earlier runs) instead of densities, so that people can read it and remove members. Each has
the location and error of the logarithms of `population.py` that are known:

    {"format": "scalerl-prior-2", "model": "scalerl-curve-8", "x": "gpu_hours", "members": [
        {"name": ..., "log_share": [-1.1, 0.03], "log_exponent": [0.65, 0.12], "log_midpoint": [7.6, 0.1]}]}
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from scalerl.errors import InputError, option
from scalerl.forecast.curves.fit import Fit
from scalerl.forecast.curves.model import MODEL
from scalerl.forecast.several.pool import LEAST_MEMBERS
from scalerl.forecast.several.population import POOLED, Member, can_be_pooled, member
from scalerl.runfolder.json_text import parse_json

FORMAT = "scalerl-prior-2"
SHIPPED = "published"
MAKE_ONE = "make one with scalerl prior RUNS --out FILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorFile:
    """Earlier runs, and the compute column of their midpoints (None if they have no midpoints)."""

    members: tuple[Member, ...]
    x: str | None
    name: str

    def on_axis(self, x: str | None) -> tuple[Member, ...]:
        """Return the members for runs whose compute is column `x`; midpoints in another unit of compute are removed."""
        if x is not None and x == self.x:
            return self.members
        return tuple(
            replace(own, values={param: value for param, value in own.values.items() if param != "midpoint"})
            for own in self.members
        )


def read_prior(name: str) -> PriorFile:
    """Read a prior file; the name `published` selects the one in the package."""
    try:
        if name == SHIPPED:
            text = (files("scalerl") / "assets" / "published_prior.json").read_text(encoding="utf-8")
        else:
            text = Path(name).read_text(encoding="utf-8")
        content = parse_json(text)
        found, rows, x = content["format"], content["members"], content.get("x")
        members = tuple(_read_member(row) for row in rows) if found == FORMAT else ()
    except OSError as error:
        raise InputError(
            f"{option:prior {name}} cannot be read: {error.strerror}; {MAKE_ONE}, or say {option:prior {SHIPPED}}"
        ) from None
    except (ValueError, LookupError, TypeError):
        raise InputError(f"{option:prior {name}} is not a prior: {MAKE_ONE}") from None
    if found == "scalerl-prior-1":
        raise InputError(f"{option:prior {name}} was written for an earlier model of the curve: {MAKE_ONE} again")
    if found != FORMAT:
        raise InputError(f"{option:prior {name}} is not a prior: {MAKE_ONE}")
    return PriorFile(members=members, x=x, name=name)


def prior_content(fits: Mapping[str, Fit], x: str) -> dict[str, Any]:
    """Return the content of a prior file for these runs; InputError if too few of them can be pooled."""
    usable = {name: curve for name, curve in fits.items() if can_be_pooled(curve)}
    if len(usable) < LEAST_MEMBERS:
        others = ", ".join(name for name in fits if name not in usable)
        raise InputError(
            f"{len(usable)} of {len(fits)} runs have a rise to learn from and {LEAST_MEMBERS} or more are needed"
            f"{f' (none is seen in {others})' if others else ''}"
        )
    rows = [
        {"name": name}
        | {
            f"log_{param}": [round(number, 6) for number in value]
            for param, value in member(name, curve).values.items()
        }
        for name, curve in usable.items()
    ]
    return {"format": FORMAT, "model": MODEL, "x": x, "members": rows}


def _read_member(row: Mapping[str, Any]) -> Member:
    given = {param: row[f"log_{param}"] for param in POOLED if f"log_{param}" in row}
    values = {param: (float(value), float(error)) for param, (value, error) in given.items()}
    if not values or not all(math.isfinite(value) and 0 < error < math.inf for value, error in values.values()):
        raise ValueError
    return Member(name=str(row["name"]), values=values)
