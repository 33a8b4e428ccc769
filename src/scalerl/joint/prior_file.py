"""Read and write prior files. `scalerl prior RUNS --out FILE` writes one and `--prior FILE` reads it; the package ships
one as well.

A file holds the members (earlier runs) rather than densities, so that people can read it and leave out members:

    {"format": "scalerl-prior-1", "x": "gpu_hours", "members": [
        {"name": ..., "source": ..., "start": 0.4, "ceiling": 0.61, "ceiling_sd": 0.01, "exponent": 1.9,
         "log_exponent_sd": 0.12},
        {"name": ..., "source": ..., "scale": 16000.0, "draws": {"share": [...], "exponent": [...], ...}}]}
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.curves.fitted import Fit
from scalerl.curves.forms import Array
from scalerl.curves.priors.pooled import can_be_pooled
from scalerl.curves.priors.prior import PARAMS, share_coordinate
from scalerl.curves.special import ndtri
from scalerl.errors import InputError
from scalerl.joint.pool import LEAST_MEMBERS, member
from scalerl.joint.population import Member

FORMAT = "scalerl-prior-1"
SHIPPED = "published"
DRAWS_KEPT = 96
GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorFile:
    """Earlier runs, and the column of compute that their midpoints are measured in (None if they have no midpoints)."""

    members: tuple[Member, ...]
    x: str | None
    name: str

    def on_axis(self, x: str | None) -> tuple[Member, ...]:
        """Return the members for runs whose compute is column `x`; midpoints in another unit of compute are removed."""
        if x is not None and x == self.x:
            return self.members
        return tuple(
            replace(own, draws={name: draws for name, draws in own.draws.items() if name != "midpoint"})
            for own in self.members
        )


def read_prior(name: str) -> PriorFile:
    """Read a prior file; the name `published` selects the one in the package."""
    if name == SHIPPED:
        text = (files("scalerl") / "assets" / "published_prior.json").read_text(encoding="utf-8")
    else:
        try:
            text = Path(name).read_text(encoding="utf-8")
        except OSError as error:
            raise InputError(
                f"--prior {name} cannot be read: {error.strerror}; make one with scalerl prior RUNS --out FILE, or say "
                f"--prior {SHIPPED}"
            ) from None
        except UnicodeDecodeError:
            raise InputError(f"--prior {name} is not a prior: make one with scalerl prior RUNS --out FILE") from None
    try:
        content = json.loads(text)
        if content["format"] != FORMAT:
            raise KeyError
        members = tuple(_read_member(row) for row in content["members"])
        return PriorFile(members=members, x=content.get("x"), name=name)
    except (ValueError, LookupError, TypeError):
        raise InputError(f"--prior {name} is not a prior: make one with scalerl prior RUNS --out FILE") from None


def prior_content(fits: Mapping[str, Fit], x: str) -> dict[str, Any]:
    """Return the content of a prior file for these runs; InputError if too few of them can be pooled."""
    usable = {name: curve for name, curve in fits.items() if can_be_pooled(curve)}
    if len(usable) < LEAST_MEMBERS:
        why = "; ".join(f"{name}: {curve.verdict}" for name, curve in fits.items() if name not in usable)
        raise InputError(
            f"{len(usable)} of {len(fits)} runs have a curve to learn from and {LEAST_MEMBERS} or more are needed"
            f"{f' ({why})' if why else ''}"
        )
    rows = []
    for name, curve in usable.items():
        own = member(name, curve)
        pick = np.linspace(0, len(own.draws["share"]) - 1, DRAWS_KEPT).astype(int)
        draws = {param: [round(float(value), 4) for value in own.draws[param][pick]] for param in PARAMS}
        rows.append({"name": name, "source": "", "scale": curve.scale, "draws": draws})
    return {"format": FORMAT, "x": x, "members": rows}


def _read_member(row: Mapping[str, Any]) -> Member:
    name = str(row["name"])
    if "draws" in row:
        draws = {str(param): np.asarray(values, dtype=float) for param, values in row["draws"].items()}
        if not draws or len({len(values) for values in draws.values()}) != 1 or set(draws) - set(PARAMS):
            raise ValueError
        if not all(np.isfinite(values).all() and len(values) for values in draws.values()):
            raise ValueError
        return Member(name=name, draws=draws, log_scale=math.log(row["scale"]))
    first, second = _normal_pairs(DRAWS_KEPT)
    start = float(row["start"])
    ceiling = np.clip(float(row["ceiling"]) + float(row["ceiling_sd"]) * first, start, 1.0)
    draws = {
        "share": share_coordinate((ceiling - start) / (1 - start)),
        "exponent": math.log(row["exponent"]) + float(row["log_exponent_sd"]) * second,
    }
    return Member(name=name, draws=draws, log_scale=0.0, is_posterior=False)


def _normal_pairs(num: int) -> tuple[Array, Array]:
    """Return `num` pairs of independent standard normal numbers, evenly spread and not random."""
    along = (np.arange(num) + 0.5) / num
    across = np.modf((np.arange(num) + 0.5) * GOLDEN)[0]
    return ndtri(along), ndtri(np.clip(across, 1e-4, 1 - 1e-4))


def without(members: Sequence[Member], names: Sequence[str]) -> tuple[Member, ...]:
    return tuple(own for own in members if own.name not in names)
