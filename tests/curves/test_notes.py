"""Notes are values; their words are made last."""

import json

import numpy as np
import pytest
from simulate import run

from scalerl.curves import NoteKind, PairKind, compare, fit, note, note_json, note_text, pair_verdict
from scalerl.curves.words import SENTENCES


def test_every_kind_has_a_sentence():
    assert set(SENTENCES) == set(NoteKind)


def test_amounts_of_compute_take_the_unit():
    crossing = note(NoteKind.CROSSING, compute=2e18)
    assert note_text(crossing, "FLOPs") == "The two curves cross at 2e+18 FLOPs."
    assert "compute 2e+18" in note_text(crossing)


@pytest.mark.parametrize("kind", PairKind)
def test_verdicts_name_the_winner_by_its_label(kind: PairKind):
    has_winner = kind in (PairKind.HIGHER_CEILING, PairKind.AHEAD, PairKind.MORE_EFFICIENT)
    winner = "runs/a" if has_winner else None
    assert ("runs/a" in pair_verdict(kind, winner)) == has_winner
    assert ("Arm A" in pair_verdict(kind, winner, {"runs/a": "Arm A"})) == has_winner


def test_notes_of_fits_and_pairs_are_json_and_sentences():
    compute, reward = run(0, num=30)
    fallen = fit(compute, reward - np.where(np.arange(30) >= 18, 0.1, 0.0), start=0.4)
    fits = {"a": fit(compute, reward, start=0.4), "b": fallen, "short": fit([1.0, 2.0], [0.4, 0.5], start=0.4)}
    notes = [each for curve in fits.values() for each in curve.notes]
    notes += [each for pair in compare(fits).pairs for each in pair.notes]
    rows = [note_json(each) for each in notes]
    assert {row["kind"] for row in rows} >= {"fall", "too_few_points", "ceiling_difference", "no_curve"}
    assert json.loads(json.dumps(rows, allow_nan=False)) == [json.loads(json.dumps(row)) for row in rows]
    assert all(note_text(each).endswith(".") for each in notes)
    assert fallen.messages == tuple(map(note_text, fallen.notes))
