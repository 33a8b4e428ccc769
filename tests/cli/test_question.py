"""Which column is the reward: the command shows what it may be, and on a terminal lets the user choose."""

import io
from pathlib import Path

import pytest
from commands import scalerl
from read_logs import write

from scalerl.cli import question
from scalerl.errors import Candidate, UnclearLogError


def two_rewards(folder: Path) -> Path:
    rows = [(step, 0.3 + step / 100, 0.2 + step / 100, step * step / 1e4) for step in range(1, 13)]
    return write(folder / "a.csv", ("step,reward_a,reward_b,kl", rows))


@pytest.mark.parametrize("command", ["fit", "compare"])
def test_the_command_ends_with_the_columns_and_their_options(tmp_path: Path, command: str) -> None:
    done = scalerl(command, two_rewards(tmp_path), "--json")
    assert done.returncode == 2
    assert not done.stdout
    cells = [line.split() for line in done.stderr.splitlines() if line[:1].isdigit()]
    assert [(row[1], row[-2:]) for row in cells] == [
        ("reward_a", ["--y", "reward_a"]),
        ("reward_b", ["--y", "reward_b"]),
    ]


def test_its_options_settle_it(tmp_path: Path) -> None:
    assert scalerl("fit", two_rewards(tmp_path), "--y", "reward_b").returncode == 0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def unclear() -> UnclearLogError:
    candidates = [
        Candidate(name=name, first=0.1, last=0.5, may_be="an evaluation", options=(("y", name),))
        for name in ("eval/a acc", "eval/b")
    ]
    return UnclearLogError("which?", tuple(candidates))


def test_a_user_at_a_terminal_chooses_by_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("1\n"))
    monkeypatch.setattr("sys.stderr", Terminal())
    assert question.answer(unclear(), may_ask=True) == {"y": "eval/a acc"}


@pytest.mark.parametrize(("typed", "may_ask"), [("3\n", True), ("1\n", False)])
def test_no_choice_is_the_error(monkeypatch: pytest.MonkeyPatch, typed: str, may_ask: bool) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(typed))
    monkeypatch.setattr("sys.stderr", Terminal())
    with pytest.raises(UnclearLogError):
        question.answer(unclear(), may_ask=may_ask)


def test_names_are_quoted_as_a_shell_needs_it() -> None:
    assert question.table(unclear().candidates)[1].endswith("--y 'eval/a acc'")
