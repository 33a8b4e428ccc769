"""A log whose reward is not clear is asked about, and never guessed."""

import json
from pathlib import Path

import pytest
from log_texts import STEPS
from read_logs import candidates, fault, kinds, read, write

from scalerl.errors import InputError, UnclearLogError

TWO = [(step, reward, round(reward / 2, 4)) for step, reward in STEPS]


@pytest.mark.parametrize(
    ("header", "may_be"),
    [
        ("step,eval/aime/acc,eval/math/acc", "an evaluation"),
        ("step,reward_a,reward_b,kl", "a training reward"),
    ],
)
def test_equally_likely_columns_are_candidates(tmp_path: Path, header: str, may_be: str) -> None:
    rows = [(*row, 0.1 + row[0] / 1e6)[: header.count(",") + 1] for row in TWO]
    log = write(tmp_path / "a.csv", (header, rows))
    found = candidates(log)
    names = header.split(",")[1:3]
    assert [(each.name, each.may_be) for each in found] == [(name, may_be) for name in names]
    assert (found[0].first, found[0].last) == (TWO[0][1], TWO[-1][1])
    assert found[0].options == (("y", names[0]),)
    for name in names:
        [series] = read(log, y=name)
        assert series.y_label == name


@pytest.mark.parametrize("header", ["step,eval/acc,reward,loss", "step,accuracy,accuracy_copy", "step,reward,kl"])
def test_one_that_stands_out_is_read(tmp_path: Path, header: str) -> None:
    rows = [(step, reward, reward, 0.1)[: header.count(",") + 1] for step, reward in STEPS]
    [series] = read(write(tmp_path / "a.csv", (header, rows)))
    assert series.y_label == header.split(",")[1]


@pytest.mark.parametrize("values", [list(range(1319)), [0.75, 1.0, 2.5], [3.8e4, 3.9e4, 3.95e4, 4e4, 4.1e4, 4.2e4]])
def test_nameless_numbers_are_no_curve(tmp_path: Path, values: list[float]) -> None:
    log = write(tmp_path / "a.json", json.dumps({"kept": values}))
    assert "nothing names" in refusal(log)


def refusal(path: Path) -> str:
    """Return the sentence of a log that is refused, and not asked about."""
    with pytest.raises(InputError) as caught:
        read(path)
    assert not isinstance(caught.value, UnclearLogError)
    return str(caught.value)


def test_a_single_candidate_is_read_and_said(tmp_path: Path) -> None:
    rows = [(step, reward, 400 + step, step % 3) for step, reward in STEPS]
    [series] = read(write(tmp_path / "a.csv", ("step,quality,turns_taken,level", rows)))
    assert (series.y_label, kinds(series)) == ("quality", ["reward_by_values"])


def test_few_different_values_may_be_a_reward_too(tmp_path: Path) -> None:
    rows = [(step, round(4 * reward) / 4, reward, 300 + step, 2 * step, step // 2) for step, reward in STEPS]
    log = write(tmp_path / "a.csv", ("step,p_hat,rho,chars,lines,files", rows))
    assert [each.name for each in candidates(log)] == ["p_hat", "rho"]


def test_numbers_under_other_names_are_candidates(tmp_path: Path) -> None:
    rows = [(step, reward, 100 * reward, reward / 9) for step, reward in STEPS]
    log = write(tmp_path / "a.csv", ("step,quality,speed,clip_frac", rows))
    assert [(each.name, each.may_be) for each in candidates(log)] == [
        ("quality", "a number that changes"),
        ("speed", "a number that changes"),
    ]


def test_an_unclear_log_is_read_as_the_clear_one_beside_it(tmp_path: Path) -> None:
    """With what the user asked for: one curve for each arm of both."""
    clear = [(step, arm, reward) for arm in ("one", "two") for step, reward in STEPS]
    unclear = [(step, arm, reward, reward / 2, step / 1e6) for arm in ("three", "four") for step, reward in STEPS]
    logs = (
        write(tmp_path / "a.csv", ("step,arm,reward_a", clear)),
        write(tmp_path / "b.csv", ("step,arm,reward_a,reward_b,kl", unclear)),
    )
    curves = read(*logs, by=("arm",))
    assert {series.name: series.y_label for series in curves} == dict.fromkeys(
        ("one", "two", "three", "four"), "reward_a"
    )
    assert "reward_of_all" in kinds(curves[-1])


def test_logs_of_a_folder_share_a_reward(tmp_path: Path) -> None:
    both = [(step, reward, reward / 2) for step, reward in STEPS]
    write(tmp_path / "runs" / "a.csv", ("step,eval/acc,reward", both))
    write(tmp_path / "runs" / "b.csv", ("step,reward", STEPS))
    curves = read(tmp_path / "runs")
    assert [series.y_label for series in curves] == ["reward", "reward"]
    assert "reward_of_all" in kinds(curves[0])


def test_an_unclear_log_is_read_as_the_others(tmp_path: Path) -> None:
    write(tmp_path / "runs" / "a.csv", ("step,reward_a,reward_b,kl", [(*row, row[0] / 1e6) for row in TWO]))
    write(tmp_path / "runs" / "b.csv", ("step,reward_b,kl", [(step, reward, step / 1e6) for step, reward in STEPS]))
    assert {series.y_label for series in read(tmp_path / "runs")} == {"reward_b"}


def test_logs_without_a_reward_in_common_say_so(tmp_path: Path) -> None:
    write(tmp_path / "runs" / "a.csv", ("step,accuracy", STEPS))
    write(tmp_path / "runs" / "b.csv", ("step,reward", STEPS))
    assert all("rewards_differ" in kinds(series) for series in read(tmp_path / "runs"))


def test_no_number_that_could_be_a_reward_is_refused(tmp_path: Path) -> None:
    log = write(tmp_path / "a.csv", ("step,loss,grad_norm", [(step, 1 - reward, 0.1) for step, reward in STEPS]))
    assert "loss" in fault(log)


def test_amounts_that_do_not_move_alike_are_no_runs(tmp_path: Path) -> None:
    rows = [(step, 900 - 700 * (step % 3 == 0), reward, 400 + step % 2) for step, reward in STEPS]
    [series] = read(write(tmp_path / "a.csv", ("step,wobble,foo,bar", rows)))
    assert (series.y_label, kinds(series)) == ("foo", ["reward_by_values"])
