"""Notes are values; their words are made last."""

import json
from typing import get_args

import pytest
from scalerl.curves.pairs.notes import Crossing, PairKind
from simulate import run

from scalerl.curves import compare, fit, note_json, note_text, pair_verdict
from scalerl.curves.notes import AtBound, Fall, Note, SkippedEarly, TooFewPoints, WideCeiling


def test_every_note_has_its_own_kind():
    kinds = [note.kind for note in get_args(Note)]
    assert len(kinds) == len(set(kinds)) > 20


def test_amounts_of_compute_take_the_unit():
    fall = Fall(
        compute=1234.5, num_points=4, mean=0.3, best=0.6, best_error=0.01, mean_error=0.01, drop=0.3, drop_error=0.014,
        drop_share=0.5, num_after=9, last=2000.0, statistic=20.0, limit=5.0, until_peak=True,
    )  # fmt: skip
    assert "at compute 1,234, to 0.3:" in note_text(fall)
    assert note_text(fall, "GPU-hours") == (
        "The reward fell by 0.3 (standard error 0.01) after a peak of 0.6 at 1,234 GPU-hours, to 0.3: choose the "
        "checkpoint there. A ceiling after a decline is not defined; the curve is fitted up to the peak. A change of "
        "task, grader or length limit there would look the same."
    )
    assert note_text(Crossing(compute=2e18), "FLOPs") == "The two curves cross at 2e+18 FLOPs."
    assert note_text(SkippedEarly(compute=10.0)).startswith("Skipped what lies before compute 10:")
    wide = WideCeiling(level=0.9, width=0.2, margin=0.06, remedy="more_compute", times=2.0, compute=300.0)
    assert note_text(wide, "steps").endswith("about 2 times the compute fitted (up to 300 steps) should settle it.")


@pytest.mark.parametrize("kind", get_args(PairKind))
def test_verdicts_name_the_winner_by_its_label(kind: PairKind):
    winner = "runs/a" if kind in ("higher_ceiling", "more_efficient") else None
    assert ("runs/a" in pair_verdict(kind, winner)) == (winner is not None)
    assert ("Arm A" in pair_verdict(kind, winner, {"runs/a": "Arm A"})) == (winner is not None)


def test_notes_of_a_fit_are_values_and_sentences():
    compute, reward = run(0, num=30, reach=4.0)
    reward[15:] -= 0.1
    done = fit(compute, reward, start=0.4)
    (fall,) = [note for note in done.notes if isinstance(note, Fall)]
    assert fall.mean < fall.best
    assert compute[0] < fall.compute < compute[-1]
    assert done.messages == tuple(map(note_text, done.notes))


def test_notes_are_json():
    notes = (
        *fit([1.0, 2.0], [0.4, 0.5], start=0.4).notes,
        *compare({"a": fit(*run(0), start=0.4), "b": fit(*run(1), start=0.4)}).pairs[0].notes,
        AtBound(param="ceiling", end="largest", value=1.0),
    )
    rows = [note_json(note) for note in notes]
    assert [row["kind"] for row in rows] == [note.kind for note in notes]
    assert rows[0] == {
        "kind": "too_few_points", "num_points": 2, "num_left_out": 0, "num_params": 3, "num_needed": 5,
    }  # fmt: skip
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows


def test_sentences_say_what_a_limit_means():
    steep = note_text(AtBound(param="exponent", end="largest", value=20.0))
    assert steep == (
        "The reward rises more abruptly than any curve that is tried (exponent 20): more evaluations during the rise "
        "would settle it."
    )
    few = TooFewPoints(num_points=1, num_left_out=0, num_params=3, num_needed=5)
    assert note_text(few) == "1 point is not enough: a curve with 3 parameters needs 5 or more."
