"""Console output of each trainer: which lines are records, and of which step."""

from pathlib import Path

import pytest
from log_texts import STYLES, prime_rl, rising, tinker, trl, verl

from scalerl.errors import InputError
from scalerl.logs.formats import read_table
from scalerl.logs.series import Selection, series_from
from scalerl.logs.table import Table


def _read(path: Path, text: str) -> Table:
    path.write_bytes(text.encode())
    return read_table(path)


def _pairs(table: Table, column: str) -> list[tuple[int, float]]:
    return [(row["step"], row[column]) for row in table.rows if column in row]


@pytest.mark.parametrize("style", STYLES)
def test_every_style_gives_its_rewards(tmp_path: Path, style: str) -> None:
    rewards = rising(20)
    table = _read(tmp_path / "train.log", STYLES[style](rewards))
    assert table.kind == "console"
    [series] = series_from([table], Selection(x="step"))
    assert [*([series.start] if series.start is not None else []), *series.reward] == pytest.approx(rewards, abs=6e-4)


def test_verl_evaluations_are_chosen_over_training(tmp_path: Path) -> None:
    table = _read(tmp_path / "train.log", verl(rising(40), every=5))
    assert (table.y, table.x) == ("val-core/openai/gsm8k/acc/mean@1", "hours")
    assert [step for step, _ in _pairs(table, table.y or "")] == list(range(5, 41, 5))
    assert table.rows[0]["perf/throughput"] == 1234.5
    assert table.rows[1]["hours"] == pytest.approx(0.02)


def test_trl_steps_come_from_the_progress_bar(tmp_path: Path) -> None:
    table = _read(tmp_path / "train.log", trl(rising(10), every=10))
    assert [step for step, _ in _pairs(table, "reward")] == list(range(10, 101, 10))
    assert [(fact.kind, fact.values["origin"]) for fact in table.facts] == [("lines_taken", "that of the progress bar")]


def test_trl_rows_are_counted_without_a_progress_bar(tmp_path: Path) -> None:
    text = trl(rising(10), bars=False).replace(
        "\n{'train_runtime'", "\n{'eval_reward': 0.5, 'epoch': 0.1}\n{'train_runtime'"
    )
    table = _read(tmp_path / "train.log", text)
    assert [step for step, _ in _pairs(table, "reward")] == list(range(1, 11))
    assert _pairs(table, "eval_reward") == [(10, 0.5)]
    _, fact = table.facts
    assert (fact.kind, fact.values["num"]) == ("rows_counted", 10)


def test_percentages_become_fractions(tmp_path: Path) -> None:
    table = _read(tmp_path / "train.log", tinker([0.5, 0.125, 0.375]))
    assert _pairs(table, "acc") == [(1, 0.5), (2, 0.125), (3, 0.375)]


def test_updates_of_slime_belong_to_their_rollout(tmp_path: Path) -> None:
    lines = []
    for rollout in range(12):
        lines.append(f"(RolloutManager pid=1) rollout {rollout}: {{'rollout/raw_reward': 0.{rollout + 10}}}")
        lines += [f"(Actor pid=2) step {2 * rollout + at}: {{'train/loss': 0.5}}" for at in (0, 1)]
        lines.append(f"(Actor pid=2) perf {rollout}: {{'perf/step_time': 36.0}}")
        lines.append(f"(RolloutManager pid=1) eval {rollout}: {{'eval/aime': 0.{rollout + 20}}}")
    table = _read(tmp_path / "train.log", "\n".join(lines) + "\n")
    assert _pairs(table, "eval/aime") == [(rollout, (rollout + 20) / 100) for rollout in range(12)]
    assert [step for step, _ in _pairs(table, "train/loss")] == [at // 2 for at in range(24)]


def test_evaluations_of_prime_rl_belong_to_the_step_before(tmp_path: Path) -> None:
    lines = []
    for step in range(8):
        lines.append(f"12:00:01    INFO Step {step} | Time: 36.00s | Reward: 0.3000 | Async Level: 1")
        lines.append(f"12:00:02 SUCCESS Evaluated math500 in 3.2s (Avg@4=0.{step + 50}00, Pass@4: 0.91, Truncated: 3%)")
    table = _read(tmp_path / "train.log", "\n".join(lines) + "\n")
    assert table.y == "eval/math500/avg@4"
    assert _pairs(table, table.y) == [(step, (step + 50) / 100) for step in range(8)]


def test_bracketed_names_tell_runs_apart(tmp_path: Path) -> None:
    text = tinker(rising(10), "a_s1") + tinker(rising(10), "a_s2")
    names = [series.name for series in series_from([_read(tmp_path / "train.log", text)], Selection())]
    assert names == ["a_s1", "a_s2"]


def test_names_of_several_words_are_kept(tmp_path: Path) -> None:
    row = _read(tmp_path / "train.log", prime_rl(rising(5))).rows[1]
    assert {"Reward", "Throughput", "Seq Length", "Async Level", "Max Off-Policy Level", "step_time"} <= set(row)
    assert row["Throughput"] == 3500.7


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("cut", [1, 3, 9, 30])
def test_growing_file_gives_no_wrong_value(tmp_path: Path, style: str, cut: int) -> None:
    rewards = rising(20)
    text = STYLES[style](rewards)
    whole = _read(tmp_path / "whole.log", text)
    part = _read(tmp_path / "part.log", text[:-cut])
    assert part.y == whole.y
    assert _pairs(part, part.y or "")[:-1] == _pairs(whole, whole.y or "")[: len(_pairs(part, part.y or "")) - 1]
    assert {value for _, value in _pairs(part, part.y or "")} <= {value for _, value in _pairs(whole, whole.y or "")}


@pytest.mark.parametrize("style", STYLES)
def test_windows_line_ends_and_utf_16(tmp_path: Path, style: str) -> None:
    text = STYLES[style](rising(12))
    plain = _read(tmp_path / "plain.log", text)
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        path = tmp_path / f"{encoding}.log"
        path.write_bytes(text.replace("\0", "").replace("\n", "\r\n").encode(encoding))
        assert repr(read_table(path).rows) == repr(plain.rows)


def test_bytes_that_are_not_utf_8_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(b"bar \xe2\x96 cut\n" + verl(rising(8)).encode())
    assert len(_pairs(read_table(path), "critic/score/mean")) == 8


def test_text_without_records_says_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("Monday, we began, and\nit went well\nTuesday, less so\n")
    with pytest.raises(InputError, match="no line records a training step: give CSV, JSON lines, or console output"):
        read_table(path)


def test_csv_with_dicts_in_cells_stays_csv(tmp_path: Path) -> None:
    table = _read(tmp_path / "a.csv", "step,reward,note\n1,0.5,\"{'a': 1}\"\n2,0.6,\"{'a': 2}\"\n")
    assert (table.kind, [row["reward"] for row in table.rows]) == ("csv", [0.5, 0.6])
