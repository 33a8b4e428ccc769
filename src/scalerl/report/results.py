"""Analyse series: fits, and the forecasts, scores or comparisons asked for, as one value for all outputs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal

import numpy as np

from scalerl.curves import (
    FORMS,
    PAPER_MARGIN,
    At,
    Comparison,
    Fit,
    Grid,
    Note,
    NoteKind,
    Pair,
    Reach,
    Score,
    Value,
    Verdict,
    compare,
    compare_by_paper,
    compute_for,
    conclusions,
    doubling,
    fit,
    note,
    note_text,
    reward_at,
    score,
)
from scalerl.errors import InputError, NoCurveError
from scalerl.joint.pool import LEAST_MEMBERS, pool
from scalerl.joint.prior_file import prior_content, read_prior
from scalerl.logs.facts import sentence
from scalerl.logs.series import Series

Command = Literal["fit", "forecast", "backtest", "compare"]
GRID_STEP = 0.005  # of the paper's grid of ceilings
MATTERS = 0.03  # share of the whole gain that one more doubling must bring for more compute to pay


class Advice(StrEnum):
    """What to do with a run, from its curve."""

    TOO_EARLY = "too_early"
    FALLING = "falling"
    """Take the checkpoint at the peak."""
    FLAT = "flat"
    LEVELLED_OFF = "levelled_off"
    RISING = "rising"
    UNCLEAR = "unclear"
    """More compute may pay or not."""


def check_one_axis(series: Iterable[Series], need: str) -> None:
    """Raise InputError unless all series count compute in one column; `need` begins its sentence."""
    axes = sorted({data.x_label for data in series})
    if len(axes) > 1:
        raise InputError(f"{need}, and these are on {' and '.join(axes)}: name one with --x COLUMN")


@dataclass(frozen=True, slots=True, kw_only=True)
class FitOptions:
    """Options of a fit that the commands share."""

    form: str = "sigmoid"
    level: float = 0.9
    margin: float | None = None
    """Difference of ceilings that matters, in units of the reward. None: a share of the gain."""
    run_sd: float | None = None
    """Spread of the ceiling between runs of a recipe that was run once. None: a share of the gain."""
    ceiling: tuple[float, ...] = ()
    """One value holds the ceiling fixed; two are the ends of the paper's grid."""
    skip_before: float | str | None = None
    fit_until: float | None = None
    method: Literal["posterior", "paper"] = "posterior"
    """"paper": the grid procedure of arXiv 2510.13786, which has no intervals."""
    pool: bool = False
    """Whether curves inform each other."""
    prior: str | None = None
    """File of earlier runs that inform each curve, or `published`."""

    @property
    def is_pooled(self) -> bool:
        return self.pool or self.prior is not None

    def of(self, series: Series) -> dict[str, Any]:
        """Return the keyword arguments of `fit` for one series."""
        if series.bounds is None and FORMS[self.form].ceiling is not None:
            raise InputError(f"--form {self.form} needs rewards with limits, and those of {series.name} have none")
        low, high = series.bounds or (-np.inf, np.inf)
        for ceiling in self.ceiling:
            if not low <= ceiling <= high:
                raise InputError(
                    f"--ceiling {ceiling:g} is not between {low:g} and {high:g}: give it in the unit of {series.name}"
                )
        given = {name: getattr(self, name) for name in ("form", "level", "margin", "skip_before", "fit_until")}
        given |= {name: getattr(series, name) for name in ("bounds", "start", "start_sd", "run", "num_samples")}
        if self.method == "paper":
            if series.start is None:
                raise InputError(
                    f"--method paper needs the reward before training, and {series.name} has no row of it: add --start "
                    "VALUE."
                )
            return given | {"method": "paper", "grid": self.grid(*(series.bounds or (0.0, 1.0)))}
        if len(self.ceiling) > 1:
            raise InputError("two ceilings are the ends of the paper's grid, and need --method paper")
        return given | {"fixed": {"ceiling": self.ceiling[0]} if self.ceiling else None}

    def grid(self, least: float, most: float) -> Grid:
        """Return the ceilings that the paper's procedure tries, for rewards from `least` to `most`."""
        if len(self.ceiling) < 2:
            return Grid(ceilings=np.array(self.ceiling) if self.ceiling else least + (most - least) * Grid().ceilings)
        low, high = min(self.ceiling), max(self.ceiling)
        return Grid(ceilings=np.linspace(low, high, round((high - low) / (GRID_STEP * (most - least))) + 1))

    def compare(self, fits: Mapping[str, Fit], at: float | None = None) -> Comparison:
        """Compare fits made with these options."""
        if self.method == "paper":
            low, high = next((each.bounds for each in fits.values() if each.bounds), (0.0, 1.0))
            return compare_by_paper(fits, margin=PAPER_MARGIN * (high - low) if self.margin is None else self.margin)
        return compare(fits, at=at, margin=self.margin, run_sd=self.run_sd)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveResult:
    """One curve. The fit of a series without points, or with a problem of its own, has the verdict NO_CURVE."""

    series: Series
    fit: Fit
    holdout: Score | None = None
    """How well it forecasts the points that were held out."""
    early: tuple[tuple[float, "CurveResult"], ...] = ()
    """The same curve up to shares of its compute, with the rest held out."""
    at: tuple[At, ...] = ()
    reach: tuple[Reach, ...] = ()

    @property
    def name(self) -> str:
        return self.series.name

    @property
    def axis(self) -> str:
        """The column of compute."""
        return self.series.x_label

    @property
    def at_end(self) -> At | None:
        """The forecast for the end of a budget; None where it is not known, or reached."""
        return self.at[-1] if self.at else None

    @property
    def verdict(self) -> Verdict:
        return self.fit.verdict

    @property
    def is_fitted(self) -> bool:
        return self.verdict != Verdict.NO_CURVE

    @property
    def notes(self) -> tuple[Note, ...]:
        """Reasons of the verdict, and what else to know about the fit."""
        return (*self._unused_start, *self.fit.notes)

    @property
    def conclusions(self) -> tuple[Note, ...]:
        """What to take away: the same notes, with where the curve levels off and when to stop."""
        return (*self._unused_start, *conclusions(self.fit))

    @property
    def _unused_start(self) -> tuple[Note, ...]:
        start = self.series.start
        if not self.is_fitted or start is None or self.fit.own_form.has_start:
            return ()
        return (note(NoteKind.UNUSED_START, start=start, form=self.fit.form),)

    @property
    def usable(self) -> bool:
        return self.fit.usable

    @property
    def doubling(self) -> Value | None:
        """Gain of twice the compute; None where there is no curve, no rise, or a fall."""
        is_rising = self.usable and self.verdict not in (Verdict.FLAT, Verdict.FALLEN)
        return doubling(self.fit) if is_rising else None

    @property
    def advice(self) -> Advice:
        """Return whether more compute pays, from the gain of one more doubling."""
        if not self.usable:
            return Advice.TOO_EARLY
        if self.fit.fall is not None:
            return Advice.FALLING
        if self.fit.verdict in (Verdict.FLAT, Verdict.FALLEN):
            return Advice.FLAT
        pays = p_doubling_pays(self.fit)
        return Advice.LEVELLED_OFF if pays < 0.25 else Advice.RISING if pays > 0.75 else Advice.UNCLEAR


def p_doubling_pays(curve: Fit) -> float:
    """Return the probability that one more doubling brings a share of the gain that matters."""
    matters = MATTERS * max(curve.gain, 0.0)
    if not curve.has_intervals:
        return float(doubling(curve).value > matters)
    now, later = curve.curve_draws(curve.scale * np.array([1.0, 2.0])).T
    return float(np.mean(later - now > matters))


@dataclass(frozen=True, slots=True, kw_only=True)
class FormRanking:
    """Forms by their error on points they had not seen, each on the same curves."""

    fraction: float | None
    """Share of the compute after which points are scored; None where held-out rows are."""
    num_curves: int
    errors: tuple[tuple[str, float], ...]
    """Form and the median RMSE over the curves, best first."""

    @property
    def scored_on(self) -> str:
        """The points that are scored, in words."""
        return "held-out rows" if self.fraction is None else f"what lies after {self.fraction:.0%} of the compute"


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """The results of a command: each curve, and the curves together."""

    command: Command
    curves: tuple[CurveResult, ...]
    comparisons: Mapping[str, Comparison] = field(default_factory=dict)
    """By evaluation set; one without a name where there is but one."""
    at: float | None = None
    """The target compute of a comparison."""
    form_ranking: FormRanking | None = None
    notes: tuple[Note, ...] = ()
    """On the curves together."""

    @property
    def pairs(self) -> tuple[Pair, ...]:
        return tuple(pair for comparison in self.comparisons.values() for pair in comparison.pairs)

    @property
    def ranking(self) -> tuple[tuple[str, float], ...]:
        """Names with the probability to be the best of their set."""
        return tuple(row for comparison in self.comparisons.values() for row in comparison.ranking)


def analyse_fit(series: Sequence[Series], options: FitOptions, at: Sequence[float] = ()) -> Analysis:
    """Fit every curve; with `at`, forecast the reward there too."""
    curves = _some_usable([_forecast(curve, at, ()) for curve in fitted_curves(series, options)])
    return Analysis(command="fit", curves=curves, notes=_pool_notes(curves, options))


def analyse_forecast(
    series: Sequence[Series], options: FitOptions, at: Sequence[float], reach: Sequence[float]
) -> Analysis:
    """Forecast the reward at computes, or the compute for rewards; unasked, the reward at 2 and 4 times the data."""
    curves = []
    for done in fitted_curves(series, options):
        usual = () if reach else (2 * done.fit.scale, 4 * done.fit.scale)
        curves.append(_forecast(done, at or usual, reach))
    return Analysis(command="forecast", curves=_some_usable(curves), notes=_pool_notes(curves, options))


def _forecast(curve: CurveResult, at: Sequence[float], reach: Sequence[float]) -> CurveResult:
    if not curve.usable:
        return curve
    return replace(curve, at=tuple(reward_at(curve.fit, at)), reach=tuple(compute_for(curve.fit, reach)))


def analyse_backtest(series: Sequence[Series], options: FitOptions, fractions: Sequence[float]) -> Analysis:
    """Score each curve's forecast on its held-out points and on what lies after each fraction; rank the forms."""
    for share in fractions:
        if not 0 < share < 1:
            raise ValueError(f"a fraction must lie between 0 and 1, not {share:g}")
    early = [(float(share), _scored([before(data, share) for data in series], options)) for share in fractions]
    curves = [
        replace(curve, early=tuple((share, own[place]) for share, own in early))
        for place, curve in enumerate(_scored(series, options))
    ]
    ranking = None if options.method == "paper" else _rank_forms(curves, options)
    return Analysis(command="backtest", curves=_some_usable(curves), form_ranking=ranking)


def _scored(series: Sequence[Series], options: FitOptions) -> list[CurveResult]:
    return [with_score(curve) for curve in fitted_curves(series, options)]


def why_unscored(curve: CurveResult, share: float) -> Note | None:
    """Return why the curve up to a share of the compute has no score; None where it has, or has a problem."""
    if curve.holdout is not None or curve.series.problem:
        return None
    if curve.fit.notes and not curve.usable:
        return curve.fit.notes[-1]
    side = "after" if curve.is_fitted else "before"
    return note(NoteKind.NOTHING_TO_SCORE, side=side, compute=share * _largest(curve.series))


def _rank_forms(curves: Sequence[CurveResult], options: FitOptions) -> FormRanking | None:
    """Rank the forms by their error on the curves for which every form has one.

    The error is that on held-out rows if there are any, else on the points after the fraction nearest to a half.
    """
    share, chosen = None, list(curves)
    if not any(curve.holdout is not None for curve in curves):
        if not curves[0].early:
            return None
        share = min((share for share, _ in curves[0].early), key=lambda share: abs(share - 0.5))
        chosen = [dict(curve.early)[share] for curve in curves]
    series, is_bounded = [curve.series for curve in chosen], all(curve.series.bounds for curve in curves)
    table = {options.form: chosen}
    for name, form in FORMS.items():
        if name != options.form and (is_bounded or form.ceiling is None):
            table[name] = _scored(series, replace(options, form=name, pool=False, prior=None))
    errors = np.array([[np.nan if curve.holdout is None else curve.holdout.rmse for curve in each]
                       for each in table.values()])  # fmt: skip
    errors = errors[:, np.isfinite(errors).all(axis=0)]
    medians = zip(table, np.median(errors, axis=1).tolist(), strict=True) if errors.size else ()
    ranked = tuple(sorted(medians, key=lambda row: row[1]))
    return FormRanking(fraction=share, num_curves=errors.shape[1], errors=ranked)


def analyse_compare(series: Sequence[Series], options: FitOptions, at: float | None) -> Analysis:
    """Compare all curves; those of run folders with several evaluation sets within each set."""
    sets: dict[str | None, list[str]] = {}
    for data in series:
        sets.setdefault(data.evaluation_set, []).append(data.name)
    if max(map(len, sets.values()), default=0) < 2:
        number = "only one curve" if len(sets) < 2 else "only one curve of each evaluation set"
        facts = [fact for data in series for fact in data.facts if fact.kind in ("files_joined", "seeds_by_name")]
        joined = "".join(f" {said}" for said in dict.fromkeys(map(sentence, facts)))
        raise InputError(
            f"{number} ({', '.join(data.name for data in series) or 'none'}) was found and two or more are needed to "
            f"compare: name more files, or split one with --by {'COLUMN' if len(sets) < 2 else 'set'}.{joined}"
        )
    check_one_axis(series, "curves must be on one axis of compute to be compared")
    curves = _some_usable(fitted_curves(series, options))
    fits = fits_of(curves)
    comparisons, notes = {}, []
    for name, members in sets.items():
        if len(members) > 1:
            together = {member: fits[member] for member in members if member in fits}
            comparisons["" if len(sets) == 1 else str(name)] = options.compare(together, at)
        else:
            notes.append(note(NoteKind.ALONE_IN_SET, name=members[0]))
    notes += _pool_notes(curves, options)
    return Analysis(command="compare", curves=curves, comparisons=comparisons, at=at, notes=tuple(notes))


def _some_usable(curves: Sequence[CurveResult]) -> tuple[CurveResult, ...]:
    if not any(curve.usable for curve in curves):
        first = curves[0]
        among = f" among {len(curves)}; the first, {first.name}" if len(curves) > 1 else ""
        why = first.series.problem or " ".join(first.fit.messages[-1:])
        raise NoCurveError(f"no usable curve{among}: {why}", reason=why)
    return tuple(curves)


def fitted_curves(series: Sequence[Series], options: FitOptions) -> list[CurveResult]:
    """Fit every curve; with `--pool` or `--prior` then each again with what the others say of it."""
    check_pool(series, options)
    return pooled([fitted_curve(data, options) for data in series], options)


def check_pool(series: Iterable[Series], options: FitOptions) -> None:
    """Raise InputError, before any fit, if curves cannot be pooled."""
    if options.pool:
        check_one_axis(series, "--pool needs curves on one axis of compute")
    if options.prior is not None:
        read_prior(options.prior)


def _pool_notes(curves: Sequence[CurveResult], options: FitOptions) -> tuple[Note, ...]:
    """Return which curves `--pool` or `--prior` left as they are."""
    if not options.is_pooled:
        return ()
    alone = tuple(name for name, fit in fits_of(curves).items() if fit.unpooled is None)
    if len(alone) == len(curves) and options.pool:
        return (note(NoteKind.NOTHING_POOLED, needed=LEAST_MEMBERS),)
    return (note(NoteKind.NOT_POOLED, names=alone),) if alone else ()


def pooled(curves: Sequence[CurveResult], options: FitOptions) -> list[CurveResult]:
    """Return the curves pooled with those of their evaluation set (--pool) and with earlier runs (--prior)."""
    if not options.is_pooled:
        return list(curves)
    axes = {curve.series.x_label for curve in curves}
    earlier = () if options.prior is None else read_prior(options.prior).on_axis(axes.pop() if len(axes) == 1 else None)
    groups: dict[str, dict[str, Fit]] = {}
    for curve in curves:
        group = str(curve.series.evaluation_set) if options.pool else curve.name
        groups.setdefault(group, {})[curve.name] = curve.fit
    together = {name: fit for fits in groups.values() for name, fit in pool(fits, earlier).items()}
    return [replace(curve, fit=together[curve.name]) for curve in curves]


def with_score(curve: CurveResult) -> CurveResult:
    """Return a curve with the score of its fit on the held-out points, where it has both."""
    held_out = score(curve.fit, curve.series.holdout_compute, curve.series.holdout_reward)
    return replace(curve, holdout=held_out)


def _largest(data: Series) -> float:
    return float(max(data.compute.max(initial=0.0), data.holdout_compute.max(initial=0.0)))


def before(data: Series, share: float) -> Series:
    """Return the series up to a share of its largest compute, with the rest held out."""
    return held_out_after(data, share * _largest(data))


def held_out_after(data: Series, limit: float, test_from: float = 0.0) -> Series:
    """Return the series up to a compute, with what lies after it held out, as far as it lies after `test_from`."""
    early, late = data.compute <= limit * (1 + 1e-9), data.compute >= test_from * (1 - 1e-9)
    later, held = late & ~early, data.holdout_compute > (limit if np.isfinite(limit) else 0.0)
    return replace(
        data.take(early),
        holdout_compute=np.concatenate([data.compute[later], data.holdout_compute[held]]),
        holdout_reward=np.concatenate([data.reward[later], data.holdout_reward[held]]),
    )


def fitted_curve(data: Series, options: FitOptions) -> CurveResult:
    """Fit one series."""
    if data.problem or not len(data.compute):
        return not_fitted(data, options)
    done = fit(data.compute, data.reward, evaluation=data.evaluation, **options.of(data))
    return CurveResult(series=data, fit=done)


def not_fitted(data: Series, options: FitOptions) -> CurveResult:
    """Return a series without a curve."""
    empty = replace(fit([], [], level=options.level), verdict=Verdict.NO_CURVE, notes=())
    return CurveResult(series=data, fit=empty)


def fits_of(curves: Iterable[CurveResult]) -> dict[str, Fit]:
    """Return the fits by name, of series that could be fitted."""
    return {curve.name: curve.fit for curve in curves if curve.is_fitted}


def param_value(fit: Fit | None, name: str) -> Value | None:
    """Return a parameter with its interval; None if the form does not have it or there is no fit."""
    if fit is None or fit.verdict == Verdict.NO_CURVE or name not in fit.params:
        return None
    low, high = fit.interval(name)
    return Value(value=fit.params[name], low=low, high=high)


def curve_text(curve: CurveResult, notes: Sequence[Note] | None = None) -> str:
    """Return what to know about one curve in words: on its rows, then its conclusions, or these notes."""
    problem = [curve.series.problem] if curve.series.problem else []
    shown = [note_text(each) for each in (curve.conclusions if notes is None else notes)]
    return " ".join([*problem, *curve.series.notes, *shown]) or curve.verdict


def prior_of(curves: Sequence[CurveResult]) -> dict[str, Any]:
    """Return the content of a prior file for these curves."""
    check_one_axis([curve.series for curve in curves], "a prior needs runs on one axis of compute")
    return prior_content(fits_of(curves), curves[0].series.x_label)
