"""What is asked of the fits: JSON whose keys never vanish, forms ranked on equal terms, sets compared apart."""

import json
from dataclasses import replace

import numpy as np
import pytest
from simulate import broken, series

from scalerl.curves import FORMS, Comparison, NoteKind, PairKind, Standing, find_note, fit, note, note_text
from scalerl.curves.compare import no_pair
from scalerl.errors import InputError, NoCurveError
from scalerl.logs.facts import Fact
from scalerl.logs.series import Series
from scalerl.report.json import to_json
from scalerl.report.numbers import decimals
from scalerl.report.results import (
    Analysis,
    FitOptions,
    analyse_backtest,
    analyse_compare,
    analyse_fit,
    analyse_forecast,
    curve_text,
)
from scalerl.report.standing import LeadKind, lead, lead_text
from scalerl.report.text import render

BY_SEED = Fact(kind="runs_apart", values={"columns": ("seed",)})


def held_out(name: str) -> Series:
    later = np.array([4000.0, 5000.0])
    return series(name, holdout_compute=later, holdout_reward=0.3 + 0.3 / (1 + (1000 / later) ** 1.9))


def shown(analysis: Analysis, *, explain: bool = False, **origins: str) -> str:
    from rich.console import Console

    console = Console(width=200)
    with console.capture() as capture:
        console.print(render(analysis, origins, explain=explain))
    return capture.get()


# JSON


def test_every_curve_has_the_same_keys():
    out = to_json(analyse_forecast([series(), series("few", num=3), broken()], FitOptions(), [9000.0], [0.5]))
    counts = [(len(curve["at"]), len(curve["reach"]), curve["doubling"] is None) for curve in out["curves"]]
    assert counts == [(1, 1, False), (0, 0, True), (0, 0, True)]
    json.dumps(out, allow_nan=False)
    out = to_json(analyse_backtest([held_out("a"), series("b"), broken()], FitOptions(), [0.5]))
    assert [curve["holdout"] and curve["holdout"]["num_points"] for curve in out["curves"]] == [2, None, None]
    assert [[row["fraction"] for row in curve["fractions"]] for curve in out["curves"]] == [[0.5]] * 3
    assert out["curves"][2]["fractions"][0]["rmse"] is None
    assert len({tuple(curve) for curve in out["curves"]}) == 1
    done = analyse_backtest([series()], FitOptions(), [])
    assert (done.curves[0].holdout, done.curves[0].early, done.form_ranking) == (None, (), None)


# Columns


def test_output_names_the_columns_of_compute_and_reward():
    mixed = analyse_fit([series("a"), series("c", seed=2, x_label="step")], FitOptions())
    units = {"compute": "gpu_hours", "reward": "pass_rate", "reward_scale": "1"}
    assert [curve["units"] for curve in to_json(mixed)["curves"]] == [units, units | {"compute": "step"}]
    expected = "compute: gpu_hours of a / step (recognised) of c, reward: pass_rate; name"
    assert expected in shown(mixed, step="recognised")


# Never


def test_answer_is_never_only_if_nearly_certain():
    [curve] = analyse_fit([series()], FitOptions()).curves
    (_, high), ceiling = curve.fit.interval("ceiling"), curve.fit.params["ceiling"]
    done = analyse_forecast([series()], FitOptions(), [], [high + 0.02, (ceiling + high) / 2, 0.5])
    lines = [line for line in shown(done).split("\n") if "compute for" in line]
    above, unsure, below = to_json(done)["curves"][0]["reach"]
    assert above["p_above_ceiling"] > 0.95 > unsure["p_above_ceiling"] > 0.5 > below["p_above_ceiling"] == 0
    assert [("never" in line, "not known" in line) for line in lines] == [(True, False), (False, True), (False, False)]
    assert f"not known: P(above ceiling) {unsure['p_above_ceiling']:.2f}" in lines[1]
    assert (above["compute"], unsure["compute"]) == (None, None)
    assert below["compute"]["value"] == pytest.approx(1420, rel=0.1)


# No curve


def test_no_usable_curve_names_what_the_window_dropped():
    with pytest.raises(NoCurveError, match=r"^no usable curve: Too few points: 3 of the 6 .*left out 22") as caught:
        analyse_fit([series(facts=(BY_SEED,))], FitOptions(skip_before=2800.0))
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match=r"no usable curve among 2; the first, a: .*left out"):
        analyse_compare([series(), series("b")], FitOptions(fit_until=500.0), None)
    for analyse in (lambda: analyse_forecast([series(num=3)], FitOptions(), [], []),
                    lambda: analyse_backtest([series(num=3), broken()], FitOptions(), [0.5])):  # fmt: skip
        with pytest.raises(InputError, match="no usable curve"):
            analyse()
    assert [one.usable for one in analyse_fit([series(num=3), series()], FitOptions()).curves] == [False, True]


# Messages


@pytest.mark.parametrize("form, start, noted", [("power", 0.3, True), ("sigmoid", 0.3, False)])
def test_note_on_a_start_that_the_form_does_not_use(form: str, start: float | None, noted: bool):
    [curve] = analyse_fit([series(start=start)], FitOptions(form=form)).curves
    assert (find_note(curve.notes, NoteKind.UNUSED_START) is not None) == noted
    assert (find_note(curve.conclusions, NoteKind.UNUSED_START) is not None) == noted


def test_conclusions_say_where_it_levels_off_and_when_to_stop():
    compute = np.linspace(300.0, 15_000.0, 24)
    reward = 0.3 + 0.3 / (1 + (1000 / compute) ** 1.9) + 0.002 * np.random.default_rng(0).normal(size=24)
    [curve] = analyse_fit([series(compute=compute, reward=reward, facts=(BY_SEED,))], FitOptions()).curves
    assert curve.series.notes[0] in curve_text(curve)
    kinds = [each.kind for each in curve.conclusions]
    assert kinds[0] == NoteKind.LEVELS_OFF
    assert kinds[-3:] == [NoteKind.MOST_OF_GAIN, NoteKind.DOUBLING, NoteKind.BEST_EVALUATION]
    assert "It levels off at 0." in curve_text(curve)


# Forms


def test_forms_are_ranked_on_points_that_were_held_out():
    half = analyse_backtest([series()], FitOptions(), [0.3, 0.7, 0.6])
    held = analyse_backtest([held_out("a"), series("b"), broken()], FitOptions(), [0.5])
    scores = dict(half.curves[0].early)[0.6].holdout, held.curves[0].holdout
    for done, score, fraction in ((half, scores[0], 0.6), (held, scores[1], None)):
        ranking = done.form_ranking
        assert score is not None
        assert ranking is not None
        assert (ranking.fraction, ranking.num_curves, {form for form, _ in ranking.errors}) == (fraction, 1, set(FORMS))
        assert dict(ranking.errors)["sigmoid"] == score.rmse
        assert to_json(done)["forms"]["fraction"] == fraction
    assert "what lies after 60% of the compute (median RMSE over 1 curve)" in shown(half)
    assert "held-out rows" in shown(held)


FEW = series("few", compute=np.array([100.0, 200, 300, 400, 900, 1000]), reward=np.linspace(0.35, 0.5, 6))
WIDE = series(reward=100 * series().reward, start=30.0, y_scale="none")


@pytest.mark.parametrize(
    "curves, form, forms",
    [([series(), FEW], "exponential", set(FORMS)), ([WIDE], "sigmoid", {"sigmoid", "power", "exponential"})],
)
def test_forms_are_ranked_over_the_curves_that_all_can_fit(curves: list[Series], form: str, forms: set[str]):
    done = analyse_backtest(curves, FitOptions(form=form), [0.5])
    assert done.form_ranking is not None
    assert done.form_ranking.num_curves == 1
    assert {name for name, _ in done.form_ranking.errors} == forms


# Comparisons


def test_curves_are_compared_within_their_evaluation_set():
    runs = [
        series(f"{run}/{name}", ceiling=ceiling + gap, seed=seed, evaluation_set=name)
        for seed, (run, ceiling) in enumerate((("r1", 0.45), ("r2", 0.55)))
        for name, gap in (("val", 0.0), ("test", 0.2))
    ]
    done = analyse_compare(runs, FitOptions(), None)
    assert [(pair.a, pair.b) for pair in done.pairs] == [("r1/val", "r2/val"), ("r1/test", "r2/test")]
    assert [pair.winner for pair in done.pairs] == ["r2/val", "r2/test"]
    out = to_json(done)
    assert [(each["set"], each["standings"][0]["name"]) for each in out["rankings"]] == [
        ("val", "r2/val"),
        ("test", "r2/test"),
    ]
    text = shown(done)
    assert "Take r2/val: best with probability over 99% in val." in text
    assert "Take r2/test: best with probability" in text


def test_set_with_one_curve_is_not_compared():
    lone = [series("r1/val", evaluation_set="val"), series("r1/test", evaluation_set="test")]
    with pytest.raises(InputError, match=r"only one curve of each evaluation set .*--by set"):
        analyse_compare(lone, FitOptions(), None)
    told = {"names": ("a_seed0", "a_seed1"), "column": "file"}
    joined = replace(series("a"), facts=(Fact(kind="seeds_by_name", values=told),))
    with pytest.raises(InputError, match=r"a_seed0, a_seed1 are runs of one curve .*--by file"):
        analyse_compare([joined], FitOptions(), None)
    done = analyse_compare([*lone, series("r2/val", seed=1, evaluation_set="val")], FitOptions(), None)
    assert [(pair.a, pair.b) for pair in done.pairs] == [("r1/val", "r2/val")]
    assert done.notes == (note(NoteKind.ALONE_IN_SET, name="r1/test"),)
    assert to_json(done)["notes"] == [{"kind": "alone_in_set", "name": "r1/test"}]


def test_curves_over_different_computes_are_not_compared():
    with pytest.raises(InputError, match=r"one axis of compute to be compared, .* gpu_hours and step: name one"):
        analyse_compare([series("a", x_label="step"), series("b")], FitOptions(), None)


def test_equal_ceilings_are_decided_by_compute():
    """Not by the probability of the higher ceiling, which is a toss-up then."""
    curves = [series(name, exponent=exponent, reach=20_000.0, num=60, noise=0.002, seed=seed)
              for seed, (name, exponent) in enumerate({"slow": 1.4, "fast": 3.0}.items())]  # fmt: skip
    done = analyse_compare(curves, FitOptions(), None)
    assert [(pair.kind, pair.winner) for pair in done.pairs] == [(PairKind.MORE_EFFICIENT, "fast")]
    assert shown(done).startswith("Take fast: it needs less compute than slow, and none is clearly higher.")


def test_curve_without_another_is_not_called_the_best():
    text = shown(analyse_compare([series("long"), series("few", num=3)], FitOptions(), None))
    assert "There is no curve to compare long with." in text
    assert "probability" not in text
    assert "1.00" not in text


@pytest.fixture(scope="module")
def pairs() -> Analysis:
    """Two alike on the same prompts, one of two runs with a lower ceiling, and one without a curve."""
    prompts = np.array([f"p@{step}" for step in range(24)])
    alike = [series(name, seed=seed, evaluation=prompts) for seed, name in enumerate(("one", "two"))]
    low = series("low", ceiling=0.4, seed=3, run=np.array(["s1"] * 12 + ["s2"] * 12))
    return analyse_compare([*alike, low, series("few", num=3)], FitOptions(), None)


def test_pairs_show_both_axes_and_what_would_decide(pairs: Analysis):
    rows = {(pair["a"], pair["b"]): pair for pair in to_json(pairs)["pairs"]}
    alike, far = rows["one", "two"], rows["one", "low"]
    assert (alike["kind"], alike["winner"]) == ("not_separable", None)
    assert 0.05 < alike["p_higher_ceiling"] < 0.95
    assert alike["target"]["compute_ratio"]["low"] < 1 < alike["target"]["compute_ratio"]["high"]
    assert 0 < alike["p_larger_exponent"] < 1
    kinds = {name: [each["kind"] for each in pair["notes"]] for name, pair in (("alike", alike), ("far", far))}
    assert [("decided_by" in each) for each in kinds.values()] == [True, False]
    assert (far["kind"], far["winner"]) == ("higher_ceiling", "one")
    assert far["ceiling_difference"]["low"] > 0
    assert far["p_larger_exponent"] is None  # no shared ceiling
    text = shown(pairs, explain=True)
    [line] = [line for line in text.split("\n") if line.split()[:2] == ["one", "two"]]
    both = [pairs.comparisons[""].shared_exponents[name].value for name in ("one", "two")]
    for cell in (f"{alike['p_higher_ceiling']:.2f}", " / ".join(f"{value:.2f}" for value in both), "not separable"):
        assert cell in line
    settled = find_note(pairs.pairs[0].notes, NoteKind.DECIDED_BY)
    assert settled is not None
    assert note_text(settled).removesuffix(".") in text
    ranking = to_json(pairs)["rankings"][0]["standings"]
    assert sum(row["p_best"] for row in ranking) == pytest.approx(1)
    assert ranking[0]["regret"] <= ranking[-1]["regret"]
    assert {pair.kind for pair in pairs.pairs if "few" in (pair.a, pair.b)} == {PairKind.NO_CURVE}


def test_assumed_spread_of_single_runs_is_printed_once(pairs: Analysis):
    """Also where pairs have more to say: here that their evaluations are on the same prompts."""
    text = shown(pairs, explain=True)
    assert text.count("is assumed") == 1
    assert "One run of one, two: a spread of up to" in text
    assert find_note(pairs.pairs[0].notes, NoteKind.SAME_PROMPTS) is None or "Evaluated on the same prompts" in text


def test_options_reach_the_comparison():
    given = FitOptions(margin=0.5, run_sd=0.2)
    [pair] = analyse_compare([series("one"), series("low", ceiling=0.4)], given, None).pairs
    spread = find_note(pair.notes, NoteKind.RUN_SPREAD)
    assert spread is not None
    assert (pair.margin, spread.sd, pair.kind == PairKind.HIGHER_CEILING) == (0.5, 0.2, False)


def test_ceiling_is_held_fixed_or_bounds_the_papers_grid():
    for options, ceiling in (
        (FitOptions(ceiling=(0.65,)), 0.65),
        (FitOptions(ceiling=(0.62, 0.64), method="paper"), 0.62),
    ):
        [curve] = analyse_fit([series()], options).curves
        assert curve.fit.params["ceiling"] == pytest.approx(ceiling)
    with pytest.raises(InputError, match="paper"):
        analyse_fit([series()], FitOptions(ceiling=(0.62, 0.64)))


# Rewards without limits


def test_rewards_without_limits_have_no_odd_decimals():
    wide = series(reward=-8000 + 10_000 * (series().reward - 0.3), start=-8000.0, y_scale="none")
    done = analyse_forecast([wide], FitOptions(), [9000.0], [-6000.0])
    [curve] = done.curves
    assert decimals(curve.fit) == 0
    assert curve.fit.params["ceiling"] == pytest.approx(-5000, abs=150)
    assert "-8,000" in shown(done, explain=True)
    assert ".000" not in shown(done, explain=True)
    [plain] = analyse_fit([series()], FitOptions()).curves
    assert decimals(plain.fit) == 3


def test_series_with_a_problem_is_named_with_the_reason():
    """Also where the table has no line for it."""
    curves = [series("long"), series("other", seed=1), replace(series("bad", num=0), problem="it has no reward.")]
    for done in (analyse_compare(curves, FitOptions(), None), analyse_backtest(curves, FitOptions(), [0.5])):
        assert "bad has no curve: it has no reward." in shown(done)


def standing(*pairs: tuple[str, str, PairKind, str | None]) -> Comparison:
    """Return a comparison of made-up pairs; the first names are the most likely to be the best."""
    fits = {name: fit([], []) for name in "abc"}
    made = tuple(replace(no_pair(a, b, fits), kind=kind, winner=winner) for a, b, kind, winner in pairs)
    standings = tuple(Standing(name=name, p_best=p, regret=0.1) for name, p in (("a", 0.5), ("b", 0.3), ("c", 0.2)))
    return Comparison(pairs=made, standings=standings, shared_ceiling=None, shared_fits={})


def test_reference_that_another_curve_beats_does_not_lead():
    for kind, best in ((PairKind.HIGHER_CEILING, "a"), (PairKind.NOT_SEPARABLE, "b")):
        winner = "c" if kind == PairKind.HIGHER_CEILING else None
        pairs = (("a", "b", PairKind.NOT_SEPARABLE, None), ("a", "c", PairKind.NOT_SEPARABLE, None))
        first = lead(standing(*pairs, ("b", "c", kind, winner)), ("a", "b", "c"), base="b")
        assert first is not None
        assert first.name == best


def test_only_curves_that_need_more_compute_are_said_to():
    """Efficiency may go round in a circle."""
    circle = [("a", "b", PairKind.MORE_EFFICIENT, "a"), ("b", "c", PairKind.MORE_EFFICIENT, "b"),
              ("a", "c", PairKind.MORE_EFFICIENT, "c")]  # fmt: skip
    first = lead(standing(*circle), ("a", "b", "c"))
    assert first is not None
    assert (first.kind, first.name, first.tied) == (LeadKind.EFFICIENT, "a", ("b",))


def test_curves_that_are_not_comparable_are_not_said_to_be_missing():
    first = lead(standing(("a", "b", PairKind.NOT_COMPARABLE, None)), ("a", "b"))
    assert first is not None
    assert lead_text(first, 3) == "There is no curve to compare a with"
