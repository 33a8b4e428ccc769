"""scalerl watch on the command line, and the board beside a run."""

import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from urllib.request import urlopen

import pytest
from boards import GrowingRun, ServedBoard
from commands import scalerl
from sessions import has_ended
from until import wait_until
from webhook import webhook

from scalerl.cli import watch as cli_watch
from scalerl.cli.watch import running_board
from scalerl.runfolder import store


@pytest.mark.parametrize(
    "words, said",
    [
        ("no/such/run", "there is no file or folder no/such/run"),
        (". --host 203.0.113.7 --port 0", "choose another --host or --port"),
    ],
)
def test_what_cannot_be_watched_is_an_error(tmp_path: Path, words: str, said: str):
    done = scalerl("watch", "--no-open", *words.split(), cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr


def test_news_of_what_is_watched_are_posted(tmp_path: Path):
    run = GrowingRun(tmp_path / "first")
    with webhook() as chat, ServedBoard(run.folder, options=("--port", "0", "--notify", chat.url)) as board:
        wait_until(lambda: "first" in board.runs())
        store.write_status(run.folder, "done", "budget spent")
        wait_until(lambda: chat.texts)
    assert chat.texts == ["watch: first: done: budget spent"]


def test_board_beside_a_block_serves_and_ends_with_it(tmp_path: Path):
    lines: list[str] = []
    with running_board(tmp_path / "later", lines.append) as process:
        wait_until(lambda: lines)
        link = re.search(r"http://\S+", lines[0])
        assert link is not None
        GrowingRun(tmp_path / "later")
        with urlopen(link[0], timeout=300) as answer:
            assert answer.status == 200
        assert process is not None
        assert process.poll() is None
    assert process.poll() is not None


def test_board_ends_with_a_killed_run(tmp_path: Path):
    code = (
        "import sys, time; from pathlib import Path; from scalerl.cli.watch import running_board\n"
        "with running_board(Path(sys.argv[1]), lambda line: None) as process:\n"
        "    print(process.pid, flush=True); time.sleep(600)"
    )
    run = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    pid = int(run.stdout.readline())
    run.kill()
    run.wait()
    run.stdout.close()
    wait_until(lambda: has_ended(pid))


@pytest.mark.parametrize(
    "program, why", [("/no/such/python", "No such file or directory"), ("/bin/true", "scalerl watch says why")]
)
def test_run_goes_on_without_its_board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, why: str):
    monkeypatch.setattr(sys, "executable", program)
    lines: list[str] = []
    with running_board(tmp_path, lines.append):
        wait_until(lambda: lines)
    assert lines == [f"The board did not start: {why}"]


def test_train_starts_a_board_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cli_watch, "running_board", lambda path, announce: nullcontext(path))
    for wanted in (False, True):
        with cli_watch.board_beside(tmp_path, wanted=wanted) as board:
            assert board == (tmp_path if wanted else None)
