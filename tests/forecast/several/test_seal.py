"""Sealed forecasts: what is in them, how they are scored, and that an edited one is refused."""

import json

import numpy as np
import pytest

from scalerl.errors import InputError
from scalerl.forecast.curves import MODEL, fit
from scalerl.forecast.several.seal import digest, opened, score_sealed, seal, sealed_curve


def points(end: float, seed: int = 0):
    rng = np.random.default_rng(seed)
    compute = np.arange(0.1, end + 1e-9, 0.1)
    reward = 0.4 + 0.2 / (1 + (1 / compute) ** 1.8) + rng.normal(0, 0.005, len(compute))
    return compute, reward


@pytest.fixture(scope="module")
def content():
    compute, reward = points(3.0)
    row = sealed_curve("run", fit(compute, reward, start=0.4), [6.0], compute, reward)
    return seal([row], version="1", date="2026-01-01T00:00:00Z", logs=["log.csv"])


def test_a_seal_names_the_model_and_older_ones_open_too(content):
    assert content["model"] == MODEL
    older = {key: value for key, value in content.items() if key != "model"}
    older["digest"] = digest(older)
    assert opened(json.dumps(older), "f.json") == older


def test_unchanged_file_opens_and_an_edited_one_does_not(content):
    text = json.dumps(content)
    assert opened(text, "f.json") == content
    edited = json.loads(text)
    edited["curves"][0]["at"][0]["reward"]["high"] += 0.01
    with pytest.raises(InputError, match=r"f\.json was changed after it was sealed"):
        opened(json.dumps(edited), "f.json")


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format": "scalerl-prior-1", "curves": []}'])
def test_other_files_are_not_sealed_forecasts(text):
    with pytest.raises(InputError, match="is not a sealed forecast"):
        opened(text, "f.json")


def test_a_good_forecast_scores_well(content):
    compute, reward = points(6.0)
    result = score_sealed(content["curves"][0], compute, reward)
    assert result.num_new == 30
    assert result.rmse < 0.02
    assert result.coverage[0.9] > 0.6
    assert result.coverage[0.5] <= result.coverage[0.8] <= result.coverage[0.9]
    assert not result.data_changed
    assert result.at[0].measured == pytest.approx(reward[np.abs(compute / 6 - 1) <= 0.05].mean())


def test_changed_data_is_noticed(content):
    compute, reward = points(6.0)
    reward[3] += 0.01
    assert score_sealed(content["curves"][0], compute, reward).data_changed


def test_nothing_new_is_not_scored(content):
    result = score_sealed(content["curves"][0], *points(3.0))
    assert result.num_new == 0
    assert np.isnan(result.rmse)
    assert result.at[0].inside is None
