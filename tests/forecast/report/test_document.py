"""One document behind every view: terminal, JSON and page say the same sentences."""

import io
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from known import known
from rich.console import Console
from small_logs import RESULTS

from scalerl.forecast.curves import Action, Comparison, State, Value
from scalerl.forecast.logs.facts import fact
from scalerl.forecast.report.document import (
    Grid,
    Section,
    say,
    says,
    sections,
)
from scalerl.forecast.report.figures import chart
from scalerl.forecast.report.json_values import to_json
from scalerl.forecast.report.page import page
from scalerl.forecast.report.result_json import curve_json, result_json
from scalerl.forecast.report.results import AxisAnswer, Result
from scalerl.forecast.report.sections import document
from scalerl.forecast.report.terminal import printable
from scalerl.forecast.report.wording import fixed, interval_text, probability_text, ratio_text, worth_text

_MADE: dict[str, Result] = {}


@pytest.fixture
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Result:
    name = request.param
    if name not in _MADE:
        _MADE[name] = RESULTS[name][0](tmp_path_factory.mktemp("log"))
    return _MADE[name]


def terminal(result: Result, *, explain: bool = True) -> str:
    return shown(document(result), explain=explain)


def shown(sections: Sequence[Section], *, explain: bool = True) -> str:
    console = Console(width=4000, file=io.StringIO(), record=True)
    console.print(printable(sections, explain=explain), highlight=False, soft_wrap=True)
    return console.export_text()


class Texts(HTMLParser):
    """The texts of all elements of one name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.texts, self._is_inside = name, list[str](), False

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag == self.name:
            self._is_inside = True
            self.texts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._is_inside = self._is_inside and tag != self.name

    def handle_data(self, data: str) -> None:
        if self._is_inside:
            self.texts[-1] += data


def texts_of(html: str, name: str) -> list[str]:
    parser = Texts(name)
    parser.feed(html)
    return parser.texts


@pytest.mark.parametrize("made, kinds", [(name, kinds) for name, (_, kinds) in RESULTS.items()], indirect=["made"],
                         ids=list(RESULTS))  # fmt: skip
def test_three_views_say_the_same(made: Result, kinds: set[str]):
    sections = document(made)
    said = list(says(sections))
    assert kinds <= {each.kind for each in said}
    text = terminal(made)
    html = page("run", sections)
    assert sorted(texts_of(html, "p")) == sorted(each.text for each in said)
    data = json.loads(json.dumps(result_json(made)["sections"]))
    told = [(block["kind"], block["text"]) for each in data for block in each["blocks"] if block["type"] == "say"]
    assert told == [(each.kind, each.text) for each in said]
    for each in said:
        assert each.text in text
    grids = [block for each in sections for block in each.blocks if isinstance(block, Grid)]
    cells = [cell for each in grids for row in each.rows for cell in row]
    assert sorted(texts_of(html, "td")) == sorted(cells)
    for cell in {cell for cell in cells if cell}:
        assert cell in text


@pytest.mark.parametrize("made", ["rising"], indirect=True)
def test_ceiling_and_worth_are_always_named(made: Result):
    by_kind = {each.kind: each.values for each in says(document(made))}
    (curve,) = made.curves
    assert by_kind["ceiling"]["ceiling"] == curve.ceiling
    decision = known(curve.decision)
    assert by_kind["doubling"]["worth"] == decision.worth == 0.01
    assert decision.action == Action.GO_ON


@pytest.mark.parametrize("made", ["flat", "fallen"], indirect=True)
def test_no_ceiling_where_there_is_none(made: Result):
    (curve,) = made.curves
    assert curve.state in (State.FLAT, State.PAST_PEAK)
    assert curve_json(curve)["ceiling"] is None
    assert "ceiling" not in {each.kind for each in says(document(made))}


@pytest.mark.parametrize("made", ["fallen"], indirect=True)
def test_checkpoint_is_an_evaluation_before_the_fall(made: Result):
    (curve,) = made.curves
    assert curve.checkpoint in curve.series.axes["step"]
    assert 240 <= known(curve.checkpoint) <= 290
    assert curve_json(curve)["checkpoint"] == curve.checkpoint


@pytest.mark.parametrize("made", ["paper", "paper pair"], indirect=True)
def test_the_paper_says_nothing_of_sureness(made: Result):
    text = terminal(made).lower()
    assert not [word for word in ("probab", "interval", "sure", "rising", "levelling") if word in text]


@pytest.mark.parametrize("made", ["price"], indirect=True)
def test_doubling_has_a_price(made: Result):
    values = next(each.values for each in says(document(made)) if each.kind == "doubling")
    assert values["price"] == pytest.approx(2.5 * 160)


@pytest.mark.parametrize("made", ["several axes"], indirect=True)
def test_every_axis_has_its_answer(made: Result):
    answers = made.by_axis[""]
    assert [each.axis for each in answers] == ["gpu_hours", "tokens", "step"]
    # Steps are GPU-hours in another unit, tokens are not.
    assert answers[2].comparison is answers[0].comparison
    assert answers[1].comparison is not answers[0].comparison
    assert len(result_json(made)["axes"]) == 3


@pytest.mark.parametrize("made", ["two open"], indirect=True)
def test_open_choices_with_other_leaders_do_not_disagree(made: Result):
    comparison = made.comparisons[""]
    assert isinstance(comparison, Comparison)
    other = replace(comparison, names=comparison.names[::-1])
    assert other.chosen != comparison.chosen
    answers = tuple(
        AxisAnswer(axis=axis, at=1.0, comparison=each) for axis, each in (("gpu_hours", comparison), ("step", other))
    )
    kinds = {each.kind for each in says(document(replace(made, by_axis={"": answers})))}
    assert "axes_agree" in kinds
    assert "axes_disagree" not in kinds


@pytest.mark.parametrize("made", ["two apart"], indirect=True)
def test_old_keys_keep_their_names(made: Result):
    content = result_json(made)
    (pair,) = content["pairs"]
    assert pair["winner"] == content["rankings"][0]["winner"] == "one"
    assert {"p_ahead", "p_close", "p_higher_ceiling", "p_larger_exponent"} <= pair.keys()
    assert content["rankings"][0]["standings"][0]["p_best"] > 0.9
    assert content["curves"][0]["ceiling"]["low"] < 0.7


def test_detail_waits_for_a_question():
    parts = sections(("a", "A", [say("flat_doubling"), say("worth", worth=0.01)]))
    short, whole = (shown(parts, explain=explain) for explain in (False, True))
    assert say("worth", worth=0.01).text in whole
    assert say("worth", worth=0.01).text not in short
    assert [block["level"] for block in to_json(parts)[0]["blocks"]] == ["why", "detail"]


@pytest.mark.parametrize("made", ["two apart"], indirect=True)
def test_an_answer_words_no_detail_of_the_log(made: Result):
    held = fact("held_values", num=3, num_rows=9)
    [first, *others] = made.curves
    noted = replace(first, series=replace(first.series, facts=(held,)))
    result = replace(made, curves=(noted, *others))
    whole, short = document(result), document(result, explain=False)
    assert "held_values" in {each.kind for each in says(whole)}
    assert "held_values" not in {each.kind for each in says(short)}


def test_markup_in_names_stays_text():
    [made] = sections(("a", "A", [say("without_curve", names=("<script>alert(1)</script>", "a|b", "[x](y)"))]))
    html = page("</title><b>", [made])
    assert "<script" not in html
    assert "</title><b>" not in html


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_number_is_cut_on_a_narrow_terminal(width: int):
    cells = (
        "a-long-name-of-a-run",
        "levelling off",
        "0.612 [0.590, 0.634]",
        "+0.021 [-0.002, +0.050]",
    )
    block = Grid(key="curves", heads=("curve", "state", "ceiling", "doubling adds"), rows=(cells, cells), left=2)
    out = io.StringIO()
    Console(width=width, file=out).print(printable([Section(key="", title="", blocks=(block,))]))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert all(sum(number in line for line in lines) == 2 for number in cells[2:])
    assert "a-long-name" in "".join(lines)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.01, "0.01"), (0.0249, "0.025"), (0.0005, "0.0005"), (1.0, "1"), (117.0, "120"), (1234.0, "1,200")],
)
def test_worth_has_two_digits(value: float, text: str):
    assert worth_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.896, "89.6%"), (0.904, "90.4%"), (0.9, "90%"), (0.8999, "just below 90%"), (0.09501, "9.5%"), (0.8, "80%"),
     (0.502, "50.2%"), (0.997, "above 99%")],
)  # fmt: skip
def test_a_probability_beside_a_threshold_is_not_written_as_the_threshold(value: float, text: str):
    """'a 90% chance of being best (90% needed)' would explain nothing."""
    assert probability_text(value) == text


def test_small_negative_numbers_are_not_minus_zero():
    assert (fixed(3)(-0.0002), fixed(3, "+")(-0.0002), fixed(3)(-0.002)) == ("0.000", "+0.000", "-0.002")


def test_ratios_have_three_digits_and_open_ends():
    assert [ratio_text(each) for each in (1.1, 0.8734, 677.0, 12345.0)] == ["1.10", "0.873", "677", "1.23e+04"]
    assert interval_text(Value(value=2.0, low=0.5, high=math.inf), ratio_text) == "2.00 [more than 0.500]"
    assert interval_text(Value(value=2.0, low=0.0, high=math.inf), ratio_text) == "2.00 [not known]"


@pytest.mark.parametrize("made", ["fallen"], indirect=True)
def test_chart_of_a_fallen_run_ends_with_its_data_and_falls(made: Result):
    (curve,) = made.curves
    drawn = chart(made.curves, "curves").drawn[0]
    assert curve.decision is not None
    assert curve.decision.fall is not None
    (line,) = [stroke for stroke in drawn.strokes if stroke.shape == "line"]
    assert line.compute[-1] <= curve.fit.scale
    assert line.reward.max() - line.reward[-1] > curve.decision.worth
