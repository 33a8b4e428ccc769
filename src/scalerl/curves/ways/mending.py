"""What mends a lack of fit: leaving out the early part, fitting the start, or another form."""

from collections.abc import Iterator
from dataclasses import dataclass

from scalerl.curves.forms import FORMS, Array, Form
from scalerl.curves.intervals import Draws
from scalerl.curves.least_squares import Solution
from scalerl.curves.points import Known, Points
from scalerl.curves.residuals.falls import LEAST_NOISE
from scalerl.curves.residuals.misfit import Misfit
from scalerl.curves.residuals.rise import Rise, find_rise
from scalerl.curves.ways.averaging import Part, average, pooled_ceilings
from scalerl.curves.ways.solving import Choice, Problem, pose

SHARES = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)  # of the largest compute, tried as the end of the early part
OTHER_FORMS = ("power", "exponential")
SPARE = 8  # points beyond the free parameters that must be left, or passing the test says nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """How a run is fitted in the end, and what was seen on the way."""

    choice: Choice
    points: Points
    known: Known
    """What is known, with the noise of the start in numbers."""
    best: Solution
    draws: Draws | None
    parts: tuple[Part, ...]
    """Ways of fitting that the intervals are averaged over; empty where the run follows its form."""
    rise: Rise | None
    misfit: Misfit | None
    """Lack of fit of the requested form through all points."""
    mended: bool

    @property
    def ceilings(self) -> Array:
        """Draws of the ceiling, over all ways of fitting where there are several."""
        assert self.draws is not None
        return pooled_ceilings(self.draws, self.parts)


def settle(
    points: Points,
    form: Form,
    known: Known,
    start_sd: float | None,
    guess: float | None,
    *,
    intervals: bool,
    test: bool,
    change: bool,
) -> Settled:
    """Fit the form and, with `test`, look for a rise and for a pattern in the residuals.

    With `change` a pattern is mended, if it can be, by leaving out early points, fitting the start or another form;
    without it only the intervals are averaged over such ways.
    """
    choice, few = Choice(form=form), points
    problem = pose(points, form, known, start_sd)
    best = problem.solve()
    rise = find_rise(problem.points, problem.known, LEAST_NOISE * (guess or 0.0)) if test else None
    misfit = problem.misfit(best) if test and (rise is None or rise.seen) else None
    pattern = misfit if misfit is not None and misfit.claimed else None
    mended = mend(points, form, known, start_sd) if pattern is not None and change else None
    if mended is not None:
        choice, few, problem, best = mended.choice, mended.points, mended.problem, mended.best
    draws: Draws | None = None
    parts: tuple[Part, ...] = ()
    if intervals:
        slow = problem.slow_noise(best)
        draws = problem.draws(guess, slow)
        if pattern is not None:
            ways = ways_around(form, known, mended.choice if mended is not None else None)
            parts = average(points, known, start_sd, guess, ways, pattern.autocorrelation, slow, (choice, draws))
    return Settled(
        choice=choice,
        points=few,
        known=problem.soft,
        best=best,
        draws=draws,
        parts=parts,
        rise=rise,
        misfit=misfit,
        mended=mended is not None,
    )


def unsettled(points: Points, form: Form, known: Known, best: Solution) -> Settled:
    """Return a solution that was not tested for a rise or a misfit."""
    return Settled(
        choice=Choice(form=form),
        points=points,
        known=known,
        best=best,
        draws=None,
        parts=(),
        rise=None,
        misfit=None,
        mended=False,
    )


def ways_around(form: Form, known: Known, mended: Choice | None) -> list[Choice]:
    """Return the ways of fitting that are worth averaging: the form, the choices that mend it, and their neighbours."""
    start_given = form.rising and known.start is not None
    skips = (0.0, 0.2, 0.5) if mended is None else (0.0, mended.skip, max(2 * mended.skip, SHARES[1]))
    ways = [Choice(form=form, skip=skip) for skip in skips]
    if start_given:
        ways += [Choice(form=form, skip=skip, start_fitted=True) for skip in skips[1:]]
    ways += [Choice(form=FORMS[name], skip=skips[1]) for name in OTHER_FORMS if name != form.name]
    if mended is not None:
        ways.append(mended)
    return list(dict.fromkeys(ways))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mended:
    """A choice under which the residuals have no pattern any more."""

    choice: Choice
    points: Points
    problem: Problem
    best: Solution


def choices(form: Form, known: Known, scale: float) -> Iterator[Choice]:
    """Yield the choices to try, in order: those that leave out the fewest points first, other forms last."""
    start_given = form.rising and known.start is not None
    for share in (0.0, *SHARES):
        share = float(f"{share * scale:.4g}") / scale  # so that the compute, as it is written, gives the same points
        if share > 0:
            yield Choice(form=form, skip=share)
        if start_given:
            yield Choice(form=form, skip=share, start_fitted=True)
    if not known.log_shape and known.ceiling is None:
        yield from (Choice(form=FORMS[name]) for name in OTHER_FORMS if name != form.name)


def mend(points: Points, form: Form, known: Known, start_sd: float | None) -> Mended | None:
    """Return the first choice that mends the fit; None where none does."""
    for choice in choices(form, known, points.scale):
        few, less = choice.of(points, known)
        if few.num < less.num_free(choice.form) + SPARE:
            continue
        problem = pose(few, choice.form, less, start_sd)
        best = problem.solve()
        misfit = problem.misfit(best)
        if misfit is not None and not misfit.claimed:
            return Mended(choice=choice, points=few, problem=problem, best=best)
    return None
