"""The result of checking another framework's recipe, as values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Framework = Literal["trl", "verl", "prime-rl"]

DifferenceKind = Literal[
    "loss",
    "cap_relative",
    "cap_too_low",
    "cap",
    "anchor",
    "clip_never_acts",
    "average",
    "normalisation",
    "fp32_head",
    "fp32_one_side",
    "no_zero_variance_filter",
    "refills",
    "no_curriculum",
    "no_interruption",
    "truncated_kept",
    "not_streaming",
    "lag",
    "lag_cannot_bind",
    "discards",
    "start_kl",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """One setting of another framework, and the setting of ours that it corresponds to."""

    theirs: str
    """Key of their configuration."""
    value: Any
    is_default: bool
    """Whether it is their default: the file does not set it."""
    ours: str
    """Key of our recipe."""
    our_value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One difference between a recipe and ScaleRL."""

    kind: DifferenceKind
    ours: str
    """The axis of our recipe."""
    statement: str
    change: str
    """What to set in their configuration; empty where the framework has no such setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A recipe of another framework in our terms."""

    framework: Framework
    translations: tuple[Translation, ...]
    differences: tuple[Difference, ...]
    not_read: tuple[str, ...] = ()
    """Keys that touch none of ScaleRL's components, or that are not known here."""


class Reader:
    """Reads settings by dotted key, with the framework's defaults, and records which keys were read."""

    def __init__(self, settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self._settings, self._defaults = dict(settings), dict(defaults)
        self._read: set[str] = set()
        self.translations: list[Translation] = []
        self.differences: list[Difference] = []

    def get(self, key: str) -> Any:
        """Return a setting, or the framework's default."""
        self._read.add(key)
        value = self._settings.get(key)
        return self._defaults.get(key) if value is None else value

    def number(self, key: str) -> float | None:
        value = self.get(key)
        try:
            return None if value is None or isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            return None

    def flag(self, key: str) -> bool:
        value = self.get(key)
        return value.strip().lower() in ("true", "1", "yes") if isinstance(value, str) else bool(value)

    def names(self) -> list[str]:
        return list(self._settings)

    def as_ours(self, theirs: str, ours: str, our_value: Any) -> None:
        """Record that one of their settings corresponds to one of ours."""
        is_default = self._settings.get(theirs) is None
        value = self.get(theirs)
        self.translations.append(
            Translation(theirs=theirs, value=value, is_default=is_default, ours=ours, our_value=our_value)
        )

    def differs(self, kind: DifferenceKind, ours: str, statement: str, change: str = "") -> None:
        self.differences.append(Difference(kind=kind, ours=ours, statement=statement, change=change))

    def not_read(self) -> tuple[str, ...]:
        return tuple(key for key in self._settings if key not in self._read)
