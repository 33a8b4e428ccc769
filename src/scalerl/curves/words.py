"""English for the notes and verdicts of `curves`. Nothing reads these sentences back: programs use the values."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from scalerl.curves import notes
from scalerl.curves.notes import ForecastNote, Note
from scalerl.curves.pairs import notes as pair_notes
from scalerl.curves.pairs.notes import PairKind, PairNote

if TYPE_CHECKING:
    from scalerl.curves.stopping import Stopping


def pair_verdict(kind: PairKind, winner: str | None, labels: Mapping[str, str] | None = None) -> str:
    """Return the verdict on a pair; `labels` replace the curves' names."""
    name = winner if labels is None or winner is None else labels.get(winner, winner)
    match kind:
        case "higher_ceiling":
            return f"{name} has the higher ceiling"
        case "more_efficient":
            return f"{name} is more efficient"
        case "not_separable":
            return "not separable"
        case "not_comparable":
            return "not comparable"
        case "no_curve":
            return "no curve"


def note_text(note: Note, unit: str | None = None) -> str:
    """Return a note as a sentence. `unit` names the unit of compute where it is known: "1500 GPU-hours"."""
    match note:
        case notes.AtBound():
            return _bound_text(note)
        case notes.NoRise():
            return "Least squares finds no rise at all."
        case notes.GridEdge():
            return f"The best {note.param} lies on the grid's edge {note.value:g}."
        case notes.StartAboveData():
            return f"The start of {note.start:.3g} lies above nearly all of the data."
        case notes.Fall():
            return fall_text(note, unit)
        case notes.WideCeiling():
            return (
                f"The {note.level:.0%} interval of the ceiling is {note.width:.3g} wide, more than the margin "
                f"{note.margin:.3g}: {_remedy(note, unit)}"
            )
        case notes.SkippedEarly():
            return f"Skipped what lies before {_amount(_short(note.compute), unit)}: it is off the later curve."
        case notes.LackOfFit() | notes.MendedFit():
            return _misfit_text(note, unit)
        case notes.NoRiseSeen(is_constant=True):
            return "No rise seen: the reward is the same in every evaluation."
        case notes.NoRiseSeen():
            return (
                f"No rise seen: a gain of {note.noticeable:.2g} per doubling of compute, or more, would have been "
                f"noticed in {note.power:.0%} of such runs."
            )
        case notes.TooFewPoints():
            total = note.num_points + note.num_left_out
            left_out = f" (the window left out {note.num_left_out} of {total})" if note.num_left_out else ""
            points = f"{note.num_points} point{'s' * (note.num_points != 1)}{left_out}"
            verb = "is" if note.num_points == 1 else "are"
            needed = f"a curve with {note.num_params} parameters needs {note.num_needed} or more"
            return f"{points} {verb} not enough: {needed}."
        case notes.NothingToScore():
            return f"There are no points {note.side} {_amount(_short(note.compute), unit)}."
        case notes.TooFewComputes():
            return f"{note.num_points} points at {note.num_computes} different computes are too few to fit a curve."
        case notes.UnusedStart():
            return f"The start of {note.start:.4g} is not used: the {note.form} form has none."
        case (
            notes.FarForecast()
            | notes.AfterFall()
            | notes.AboveCeiling()
            | notes.AlreadyReached()
            | notes.MayBeAboveCeiling()
        ):
            return forecast_message([note])
        case _:
            return _pair_text(note, unit)


def fall_text(note: notes.Fall, unit: str | None) -> str:
    """Return by how much a run fell after its peak, and what to do about it."""
    run = "" if note.run is None else f" of run {note.run}"
    peak = f"{note.best:.3g} at {_amount(_short(note.compute), unit)}"
    advice = "choose the checkpoint there"
    if note.regained > 0:
        advice = f"it has regained {note.regained:.2g} since its lowest"
    fitted = "the curve is fitted up to the peak" if note.until_peak else "the curve is fitted through all points"
    return (
        f"The reward{run} fell by {note.drop:.2g} (standard error {note.drop_error:.1g}) after a peak of {peak}, to "
        f"{note.mean:.3g}: {advice}. A ceiling after a decline is not defined; {fitted}. A change of task, grader or "
        "length limit there would look the same."
    )


def _bound_text(note: notes.AtBound) -> str:
    """Return what it means that a parameter ended at a limit of its range."""
    match note.param, note.end:
        case "ceiling", _:
            return (
                f"The best fit has its ceiling at {note.value:g}, the highest reward there is: it has not levelled off."
            )
        case "exponent", "largest":
            return (
                f"The reward rises more abruptly than any curve that is tried (exponent {note.value:.3g}): more "
                f"evaluations during the rise would settle it."
            )
        case "exponent", _:
            return f"The reward rises more slowly than any curve that is tried (exponent {note.value:.3g})."
        case param, end:
            side = "above" if end == "largest" else "below"
            return f"The best fit wants a {param} {side} {note.value:.3g}, the end of the range that is tried."


def _misfit_text(note: notes.LackOfFit | notes.MendedFit, unit: str | None) -> str:
    where = _amount(_short(note.compute), unit)
    size = f"of up to {note.size:.2g} around {where} (statistic {note.statistic:.3g}, limit {note.limit:.3g})"
    if isinstance(note, notes.LackOfFit):
        return (
            f"The curve does not fit: the residuals have a pattern {size}. Its intervals are averaged over other ways "
            "to fit the run."
        )
    options = []
    if note.skip_before is not None:
        options.append(f"--skip-before {note.skip_before:.4g}")
    if note.start_fitted:
        options.append("--start fit")
    if note.form != "sigmoid":
        options.append(f"--form {note.form}")
    return (
        f"One sigmoid through all points does not fit: the residuals have a pattern {size}. It is fitted as with "
        f"{' '.join(options)}, which mends it."
    )


def forecast_message(caveats: Sequence[ForecastNote]) -> str:
    """Return the notes on one forecast as one text, empty without notes."""
    text = "; ".join(map(_forecast_text, caveats))
    return text[:1].upper() + text[1:]


def _forecast_text(note: ForecastNote) -> str:
    match note:
        case notes.FarForecast():
            doubt = "the ceiling is not known, so the interval allows for a rise that the data do not show"
            if note.reason == "unstable":
                doubt = "the run fell after its peak"
            return f"a guess: more than {note.times:g} times the compute fitted, and {doubt}"
        case notes.AfterFall():
            return (
                f"the reward fell from {note.best:.3g} to {note.mean:.3g} after {_short(note.compute)}: it may recover "
                f"or fall further, and no ceiling is promised"
            )
        case notes.AboveCeiling():
            text = f"{note.reward:g} is above the ceiling of {note.ceiling:.3f}"
            return text if note.probability is None else f"{text} (probability {note.probability:.0%})."
        case notes.AlreadyReached():
            return "already reached" + (" by the first point fitted" if note.by_first_point else "")
        case notes.MayBeAboveCeiling():
            return f"above the ceiling with probability {note.probability:.0%}"


def _pair_text(note: PairNote, unit: str | None) -> str:
    match note:
        case pair_notes.NoCurve():
            return f"{note.name} has no curve to compare: {note.verdict}."
        case pair_notes.NoIntervals():
            return "No intervals were computed."
        case pair_notes.CeilingDifference():
            return f"The ceiling of {note.winner} is {note.difference:.3g} higher."
        case pair_notes.Unstable() | pair_notes.PastPeak():
            return _fallen_text(note, unit)
        case pair_notes.IfCeilingShared():
            verdict = pair_verdict(note.verdict, note.winner)
            return f"At one ceiling for both, {verdict}; but it is not known yet whether their ceilings are alike."
        case pair_notes.ProbablyHigher():
            guess = ""
            if note.before_midpoint is not None:
                guess = f" But {note.before_midpoint} may not be half-way up yet, so its own is a guess."
            return (
                f"The ceiling of {note.name} is probably {note.difference:.3g} higher "
                f"(probability {note.probability:.2f}).{guess}"
            )
        case pair_notes.MixedEfficiency():
            return (
                f"{note.sooner} reaches half its gain sooner, {note.steeper} rises more steeply: the cheaper one "
                f"depends on the target."
            )
        case pair_notes.LargerExponent():
            return f"Ceilings are within what runs differ by; the exponent of {note.winner} is larger."
        case pair_notes.EarlierMidpoint():
            times = f"{note.ratio:.2f} times the compute"
            return f"Ceilings and exponents tie; {note.winner} reaches half its gain with {times}."
        case pair_notes.MeasuredDifference():
            return (
                f"Measured: {note.higher} is {note.difference:.2g} above {note.lower} (standard error "
                f"{note.error:.1g}) at {note.num_places} evaluations from "
                f"{_amount(f'{_short(note.low)} to {_short(note.high)}', unit)}."
            )
        case pair_notes.NotMeasuredTogether():
            return "Hardly measured at the same compute: this rests on the fitted curves alone."
        case pair_notes.SameRun():
            return "Both hold the same evaluations: one is the other, or a part of it."
        case pair_notes.NotMeasured():
            if note.reason == "lower_everywhere":
                return f"The fitted curves favour {note.name}, but it is lower wherever both were measured."
            return f"The fitted curves favour {note.name}, but nowhere was it measured to be higher."
        case pair_notes.KnownFromPrior():
            return f"Efficiency is not compared: the data do not tell the {note.param}s yet."
        case pair_notes.NoEfficiency():
            return f"Efficiency is not compared: the verdict on {note.name} is {note.verdict}."
        case pair_notes.AssumedRunSpread():
            single = " and of ".join(note.names)
            return f"One run of {single}: a spread of {note.sd:g} between runs is assumed for the ceiling."
        case pair_notes.SamePrompts():
            return f"Evaluated on the same prompts: paired, with residuals correlated at {note.correlation:.2f}."
        case pair_notes.Crossing():
            return f"The two curves cross at {_amount(_short(note.compute), unit)}."
        case pair_notes.DifferentPrompts():
            return "Evaluated on different prompts: the two are not comparable."


def _fallen_text(note: pair_notes.Unstable | pair_notes.PastPeak, unit: str | None) -> str:
    if isinstance(note, pair_notes.Unstable):
        return f"{note.name} is unstable."
    where = _amount(_short(note.compute), unit)
    return f"{note.name} fell after its peak, and is compared by the {note.best:.3g} that it reached at {where}."


def stopping_text(stopping: "Stopping", unit: str | None = None) -> str:
    """Return when to stop, as one sentence."""
    parts = []
    if stopping.fell_after is not None:
        since = _amount(_short(stopping.fell_after), unit)
        if stopping.rising_again:
            parts.append(f"the reward fell after {since} and is rising again: the best checkpoint so far is from there")
        else:
            parts.append(f"the reward has fallen since {since}: stop, and take the checkpoint from there")
    most = stopping.most_of_gain
    if most is not None:
        verb = "was reached" if stopping.reached else "should be reached"
        interval = "" if math.isnan(most.low) else f" [{_short(most.low, 3)}, {_short(most.high, 3)}]"
        parts.append(f"95 % of the gain {verb} at {_amount(_short(most.value, 3), unit)}{interval}")
    if stopping.doubling is not None:
        parts.append(f"one more doubling should bring {stopping.doubling.value:+.2g}")
    if stopping.no_gain_since is not None and stopping.fell_after is None:
        since = _amount(_short(stopping.no_gain_since), unit)
        parts.append(f"no gain can be measured since {since} ({stopping.num_without_gain} evaluations)")
    best = stopping.best
    noise = "better than its neighbours beyond noise" if best.beyond_noise else "within noise of its neighbours"
    parts.append(f"the best evaluation, {best.reward:.4g} at {_amount(_short(best.compute), unit)}, is {noise}")
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


def _remedy(note: notes.WideCeiling, unit: str | None) -> str:
    if note.remedy == "more_seeds":
        return "the runs differ by that much among themselves, so more seeds are needed and not more compute."
    if note.remedy == "much_more_compute":
        return f"more than {note.times:g} times the compute fitted would be needed to settle it."
    assert note.compute is not None
    amount = _amount(_short(note.compute), unit)
    return f"about {note.times:g} times the compute fitted (up to {amount}) should settle it."


def _short(compute: float, digits: int = 4) -> str:
    """Format an amount of compute to so many digits: 17,190 and not 1.719e+04, but 1.719e+18."""
    rounded = float(f"{compute:.{digits}g}")
    return f"{rounded:,.0f}" if 100 <= rounded < 1e7 else f"{rounded:.{digits}g}"


def _amount(number: str, unit: str | None) -> str:
    return f"compute {number}" if unit is None else f"{number} {unit}"
