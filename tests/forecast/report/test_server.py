"""The server of the page: what it serves, what it refuses, and that it follows files as they grow."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from boards import GrowingRun, ServedBoard
from ray_processes import descendants
from run_folders import write_study
from until import wait_until

from scalerl.forecast.report.board import state
from scalerl.forecast.report.board.serve import HEADERS
from scalerl.forecast.report.board.snapshot import Snapshot, take_snapshot
from scalerl.forecast.report.board.state import WORKER_BYTES, Board
from scalerl.forecast.report.sources import Source

SECRET = "do-not-show-this"


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, a study, other trainers' logs, and what an attacker would put beside them."""
    folder = tmp_path_factory.mktemp("watched")
    run = GrowingRun(folder / "good")
    for _ in range(12):
        run.train(10)
        run.evaluate()
    run.sample("2+2", "<script>window.hacked = 1</script>")
    write_study(folder / "study", num=16)
    (folder / "verl.log").write_text(
        "".join(f"step:{n} - critic/rewards/mean:{0.1 + n / 100:.3f}\n" for n in range(30))
    )
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret.jsonl").write_text(
        "".join(f'{{"step": {n}, "reward": 0.{n}, "{SECRET}": 1}}\n' for n in range(9))
    )
    GrowingRun(outside / SECRET)
    (folder / "linked").symlink_to(outside / SECRET)
    (folder / "linked.jsonl").symlink_to(outside / "secret.jsonl")
    inner = GrowingRun(folder / "inner")
    (inner.folder / "samples.jsonl").symlink_to(outside / "secret.jsonl")
    (folder / "<img src=x onerror=alert(1)>").mkdir()
    GrowingRun(folder / "<img src=x onerror=alert(1)>" / "run")
    os.mkfifo(folder / "pipe.log")
    return folder


@pytest.fixture(scope="module")
def board(watched: Path) -> Iterator[ServedBoard]:
    with ServedBoard(watched) as served:
        wait_until(lambda: len(served.runs()) >= 6)
        yield served


def test_every_kind_of_input_is_listed(board: ServedBoard):
    wanted = {"good", "verl", "two-arms/base-seed0", "two-arms/lower-seed0", "study two-arms"}
    wait_until(lambda: wanted <= board.runs().keys())


def test_run_is_a_document(board: ServedBoard):
    part = wait_until(lambda: 'data-key="curves/"' in (run := board.page(board.runs()["good"])) and run)
    assert part.count('class="fitted"') == 12
    assert 'class="band"' in part
    assert all(f'data-kind="{kind}"' in part for kind in ("ceiling", "doubling", "forecast_at"))
    shown, _, folded = part.partition('<details data-key="health"')
    assert all(f'data-key="{key}"' in shown for key in ("loss/entropy", "rollout/length_mean"))
    # What else was logged is folded away.
    assert 'data-key="time/step_s"' in folded


def test_study_is_compared(board: ServedBoard):
    key = wait_until(lambda: board.runs().get("study two-arms"))
    study = wait_until(lambda: 'data-key="standings"' in (seen := board.page(key)) and seen)
    assert study.index(">base<") < study.index(">lower<")
    assert 'data-kind="take"' in study


def test_overview_compares_what_is_watched(board: ServedBoard):
    wait_until(lambda: 'data-key="overview"' in (seen := board.page()) and 'data-key="curves/"' in seen)


def test_nothing_outside_is_served(board: ServedBoard):
    assert SECRET not in board.page()
    for key in board.runs().values():
        assert board.page(key)
        assert SECRET not in board.page(key)


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd", "/..%2f..%2fetc%2fpasswd", "/good", "/good/recipe.json",
    ],
)  # fmt: skip
def test_paths_are_never_looked_up(board: ServedBoard, path: str):
    status, _, body = board.get(path)
    assert status == 404
    assert b"root:" not in body


def test_assets_are_a_fixed_table(board: ServedBoard):
    for path in ("/assets/../report/page.html", "/assets/%2e%2e%2freport/page.html", "/assets//etc/passwd"):
        assert board.get(path)[0] == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_no_route_changes_anything(board: ServedBoard, method: str):
    for path in ("/", "/000000000000", "/assets/refresh.js"):
        assert board.get(path, method=method)[0] == 405


def test_headers_forbid_scripts_from_elsewhere(board: ServedBoard):
    for path in ("/", "/assets/refresh.js", "/nothing"):
        headers = board.get(path)[1]
        assert {name: headers[name] for name in HEADERS} == HEADERS
    assert "'unsafe-inline'" not in HEADERS["Content-Security-Policy"].split("script-src")[1].split(";")[0]
    status, headers, body = board.get("/", method="OPTIONS")
    assert (status, body, headers.get("Server"), headers["X-Content-Type-Options"]) == (501, b"", None, "nosniff")


def test_readers_of_logs_have_a_limit_of_memory(board: ServedBoard):
    """The board's own process never reads a log; a worker that needs more than its limit ends, and its log says so."""
    pid = board.process.pid if board.process else 0
    limits = [Path(f"/proc/{worker}/limits").read_text() for worker in descendants(pid)]
    assert limits
    assert {text.partition("Max data size")[2].split()[0] for text in limits} == {str(WORKER_BYTES)}


def test_version_of_a_page_changes_with_a_new_row(board: ServedBoard, watched: Path):
    run = GrowingRun(watched / "grown")
    key = wait_until(lambda: board.runs().get("grown"))
    before = board.get(f"/{key}")[1]["ETag"]
    assert board.get(f"/{key}", headers={"If-None-Match": before})[0] == 304
    written = time.monotonic()
    run.train(1)
    wait_until(lambda: board.get(f"/{key}", headers={"If-None-Match": before})[0] == 200)
    assert time.monotonic() - written < 60  # others use this machine too
    assert "step 1" in board.page(key)


def test_run_that_vanishes_leaves_the_list(board: ServedBoard, watched: Path):
    run = GrowingRun(watched / "short-lived")
    wait_until(lambda: "short-lived" in board.runs())
    shutil.rmtree(run.folder)
    wait_until(lambda: "short-lived" not in board.runs())
    assert "good" in board.runs()


def endless_if_bad(source: Source, end_compute: float | None) -> Snapshot:
    """Take a snapshot of a source; that of a bad one never ends."""
    while source.name.startswith("bad"):
        pass
    return take_snapshot(source, end_compute)


@pytest.mark.slow
def test_endless_logs_hold_back_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("bad1", "bad2", "bad3", "bad4", "good"):
        (tmp_path / f"{name}.log").write_text("".join(f"step:{n} - reward:{n / 30}\n" for n in range(30)))
    monkeypatch.setattr(state, "take_snapshot", endless_if_bad)
    monkeypatch.setattr(state, "SNAPSHOT_S", 8.0)
    problems: dict[str, list[str]] = {}

    def keep(seen: Snapshot) -> None:
        if seen.source.kind == "log":
            problems.setdefault(seen.source.name, []).append(seen.problem)

    with closing(Board(sorted(tmp_path.glob("*.log")), on_snapshot=keep)) as board:
        wait_until(lambda: board.update() or len(problems) == 5)
        assert {name for name, said in problems.items() if "took more than 8 s" in said[0]} == {*problems} - {"good"}
        # Bad ones that grow are looked at again, but never by the last free worker.
        monkeypatch.setattr(state, "SNAPSHOT_S", 600.0)
        monkeypatch.setattr(state, "PAUSE", 0.0)
        num = len(problems["good"])
        for path in tmp_path.glob("*.log"):
            with path.open("a") as file:
                file.write("step:30 - reward:1.0\n")
        wait_until(lambda: board.update() or len(problems["good"]) > num)
