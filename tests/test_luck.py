"""Verdicts of docs/results that once changed with the seed of a fit."""

import importlib

import pytest

luck, measured = map(importlib.import_module, ("luck", "measured"))


@pytest.mark.parametrize(("study", "arms"), [("first-curves", ("baseline", "scalerl")), ("model-size", ("2m", "135m"))])
def test_verdicts_of_results_do_not_change_with_the_seed(study: str, arms: tuple[str, ...], monkeypatch):
    monkeypatch.setattr(luck, "NUM_TRIED", 3)
    runs = luck.studies()[study]
    own = {arm: measured.together(runs[f"scalerl/{study}/{arm}"]) for arm in arms}
    first, *others = luck.tried("seeds", own)
    assert all(other == first for other in others)


def test_verdicts_hardly_rest_on_the_points_of_the_draws(monkeypatch):
    monkeypatch.setattr(luck, "NUM_TRIED", 3)
    runs = luck.studies()["first-curves"]
    own = {arm: measured.together(runs[f"scalerl/first-curves/{arm}"]) for arm in ("baseline", "scalerl")}
    first, *others = luck.tried("points", own)
    for other in others:
        for name, (_, probability) in first.items():
            assert other[name][1] == pytest.approx(probability, abs=0.01)
