"""Seal the forecasts of analysed curves, score sealed files against logs, and show how well they did."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from scalerl import __version__
from scalerl.errors import InputError, UsageError
from scalerl.forecast.logs import Selection, Series, read
from scalerl.forecast.logs.series import in_shares
from scalerl.forecast.report.analyse import computes_ahead
from scalerl.forecast.report.document import Document, Json, Say, say, sections, table
from scalerl.forecast.report.json_values import picked, plain
from scalerl.forecast.report.options import FitOptions
from scalerl.forecast.report.results import CurveResult
from scalerl.forecast.several.seal import LEVELS, SealScore, opened, score_sealed, seal, sealed_curve
from scalerl.runfolder.store import write_json

Kind = Literal["scored", "nothing_new"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileScore:
    """The scores of the curves of one sealed file."""

    path: Path
    date: str
    curves: tuple[SealScore, ...]
    missing: tuple[str, ...]
    """Curves of the file that the log does not hold."""

    @property
    def kind(self) -> Kind:
        if any(curve.num_scored for curve in self.curves):
            return "scored"
        return "nothing_new"


def check_new_seal(file: Path) -> None:
    """Raise UsageError, before any fit, if the file exists or its folder does not."""
    if file.exists():
        raise UsageError(f"--seal {file} exists already: a sealed forecast is never written over, so name another file")
    if not file.parent.is_dir():
        raise UsageError(f"--seal {file}: there is no folder {file.parent}")


def write_seal(
    file: Path,
    curves: Sequence[CurveResult],
    logs: Sequence[str],
    selection: Selection,
    options: FitOptions,
) -> None:
    """Write these curves' forecasts with the hash of their data, the version and the date."""
    rows: list[Json] = []
    for curve in curves:
        if curve.fit.has_intervals:
            computes = [each.compute for each in curve.at] or list(computes_ahead(curve.fit))
            rows.append(sealed_curve(curve.name, curve.fit, computes, curve.series.compute, curve.series.reward))
    if not rows:
        raise InputError("no curve could be fitted, so there is no forecast to seal")
    date = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    names = [Path(log).resolve().name for log in logs]
    given = {"selection": plain(selection), "options": plain(options)}
    write_json(file, seal(rows, version=__version__, date=date, logs=names, **given))


# Scores


def read_scores(sealed: Path, logs: Sequence[str]) -> list[FileScore]:
    """Score a sealed file, or every one in a folder, against logs, or against those that it was made from."""
    if sealed.is_dir():
        files = sorted(sealed.glob("*.json"))
    else:
        files = [sealed]
    if not files:
        raise InputError(f"{sealed} has no sealed forecasts (*.json): make them with scalerl forecast LOG --seal FILE")
    return [_score_file(path, logs) for path in files]


def _score_file(path: Path, logs: Sequence[str]) -> FileScore:
    try:
        content = opened(path.read_bytes(), str(path))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    # Options that there were when it was sealed may be gone.
    selected = {key: _frozen(value) for key, value in content["selection"].items() if key in Selection.__slots__}
    series = read(_matching_logs(content["logs"], logs, path.parent), Selection(**selected))
    sealed = content["curves"]
    by_name = {each.name: each for each in series}
    if len(series) == len(sealed) == 1:
        by_name = {sealed[0]["name"]: series[0]}  # a file may have been renamed since
    scores: list[SealScore] = []
    missing: list[str] = []
    for curve in sealed:
        if curve["name"] in by_name:
            scores.append(_score(curve, by_name[curve["name"]]))
        else:
            missing.append(curve["name"])
    if not scores:
        raise InputError(f"none of the curves sealed in {path} ({', '.join(missing)}) is in what was given")
    return FileScore(path=path, date=str(content["date"]), curves=tuple(scores), missing=tuple(missing))


def _frozen(value: Any) -> Any:
    """Return a value of JSON with tuples in place of lists."""
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    return value


def _matching_logs(sealed: Sequence[str], given: Sequence[str], folder: Path) -> list[str]:
    """Return the given logs whose names are those of the sealed ones; all of them unless each name occurs once.

    Without given logs they are looked for by their names, here and beside the sealed file. A folder of sealed files is
    scored against all runs at once, and curves are named by what tells the logs apart, so each file must see its own
    logs alone.
    """
    names = [Path(log).name for log in sealed]
    if given:
        own: list[str] = []
        for name in names:
            matches = [log for log in given if Path(log).resolve().name == name]
            if len(matches) != 1:
                return [*given]
            own.append(matches[0])
        return own
    for name in names:
        if not (Path(name).exists() or (folder / name).exists()):
            raise InputError(f"there is no log {name} here or in {folder}: name the log after the sealed file")
    return [name if Path(name).exists() else str(folder / name) for name in names]


def _score(curve: Mapping[str, Any], data: Series) -> SealScore:
    if data.problem:
        raise InputError(f"{data.name}: {data.problem}")
    scored = score_sealed(curve, data.compute, data.reward)
    if not scored.data_changed or data.bounds is None:
        return scored
    # A forecast may have been sealed in shares of a log in another scale.
    shares = score_sealed(curve, data.compute, in_shares(data).reward)
    if shares.data_changed:
        return scored
    return shares


def calibration(results: Sequence[FileScore]) -> dict[float, tuple[float, int]]:
    """Return, for each level, the share of new evaluations inside their interval, and their number."""
    scored: list[SealScore] = []
    for result in results:
        scored += [curve for curve in result.curves if curve.num_scored]
    num = sum(curve.num_scored for curve in scored)
    coverage: dict[float, tuple[float, int]] = {}
    for level in LEVELS:
        inside = sum(curve.coverage[level] * curve.num_scored for curve in scored)
        coverage[level] = (inside / num if num else math.nan, num)
    return coverage


# As a document and as JSON


def score_document(results: Sequence[FileScore]) -> Document:
    """Return a line for each sealed curve, what to beware of, and of a single file the forecasts it was asked for."""
    rows: list[tuple[Any, ...]] = []
    asked: list[tuple[Any, ...]] = []
    for result in results:
        for curve in result.curves:
            rows.append(({"inside": curve.coverage[0.9]}, curve, result))
            if len(results) == 1:
                asked += [({"name": curve.name, "inside": INSIDE[row.inside]}, row) for row in curve.at]
    blocks = [*score_says(results), table("scores", SCORE_COLUMNS, rows, left=3), table("asked", ASKED_COLUMNS, asked)]
    return sections(("scores", "Sealed forecasts", blocks))


INSIDE = {None: "-", True: "yes", False: "no"}
SCORE_COLUMNS = {
    "file": "{path.name}",
    "sealed": "{date}",
    "curve": "{name}",
    "new": "{num_scored}",
    "RMSE": "{rmse:.3g}",
    "bias": "{bias:+.3g}",
    "in 90%": "{inside:%}",
}
ASKED_COLUMNS = {
    "curve": "{name}",
    "compute": "{compute:c}",
    "forecast": "{reward:a}",
    "measured": "{measured:a}",
    "inside": "{inside}",
}


def score_says(results: Sequence[FileScore]) -> Iterator[Say]:
    """Yield how many evaluations the intervals of each level held, and what does not match the sealed files."""
    if any(result.kind == "scored" for result in results):
        for level, (share, num) in calibration(results).items():
            yield say("score_held", level=level, share=share, num=num)
    else:
        yield say("score_nothing")
    for result in results:
        for curve in result.curves:
            if curve.data_changed:
                yield say("score_changed", curve)
        for name in result.missing:
            yield say("score_missing", name=name)


def scores_json(results: Sequence[FileScore]) -> Json:
    """Return the scores of each file and of all together."""
    names = ("name", "num_new", "rmse", "bias", "coverage", "data_changed", "num_scored")
    files = []
    for result in results:
        curves = []
        for curve in result.curves:
            at = [picked(("compute", "measured", "inside", "reward"), row) for row in curve.at]
            curves.append({**picked(names, curve), "at": at})
        files.append({"file": str(result.path), **picked(("date", "kind", "missing"), result), "curves": curves})
    levels = {level: {"covered": share, "num": num} for level, (share, num) in calibration(results).items()}
    return {"files": files, "calibration": plain(levels)}
