"""Apply the options `--pool` and `--prior FILE` to fitted curves."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from scalerl.curves import Fit
from scalerl.errors import InputError
from scalerl.joint.pool import pool
from scalerl.joint.population import Member
from scalerl.joint.prior_file import read_prior
from scalerl.logs.series import Series


def check_one_axis(series: Iterable[Series], need: str) -> None:
    """Raise InputError unless all series count compute in one column; `need` begins its sentence."""
    axes = sorted({data.x_label for data in series})
    if len(axes) > 1:
        raise InputError(f"{need}, and these are on {' and '.join(axes)}: name one with --x COLUMN")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooling:
    """Whether curves are pooled with each other, and the earlier runs that they are pooled with."""

    together: bool
    earlier: tuple[Member, ...]

    @classmethod
    def of(cls, series: Sequence[Series], *, pool: bool, prior: str | None) -> Self:
        if pool:
            check_one_axis(series, "--pool needs curves on one axis of compute")
        axes = sorted({data.x_label for data in series})
        earlier = () if prior is None else read_prior(prior).on_axis(axes[0] if len(axes) == 1 else None)
        return cls(together=pool, earlier=earlier)

    def apply(self, fits: Mapping[str, Fit], groups: Mapping[str, str]) -> dict[str, Fit]:
        """Return the fits after pooling; only curves of the same group (evaluation set) are pooled with each other."""
        if not self.together:
            return {name: own for name, curve in fits.items() for own in [pool({name: curve}, self.earlier)[name]]}
        done: dict[str, Fit] = {}
        for group in dict.fromkeys(groups[name] for name in fits):
            done |= pool({name: curve for name, curve in fits.items() if groups[name] == group}, self.earlier)
        return {name: done[name] for name in fits}
