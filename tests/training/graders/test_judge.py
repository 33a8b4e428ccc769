"""A judge over HTTP, asked by the pool's own process, against a server of this one."""

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from graded import grade_all
from until import wait_until

from scalerl.errors import GraderError
from scalerl.training.graders.judge import prepare, score_in
from scalerl.training.graders.pool import Graded, GraderPool, GraderSpec

TOGETHER = 21
"""Questions that must be open at the same time before any of their kind is answered."""


class Server(ThreadingHTTPServer):
    """Does what the answer asks for."""

    daemon_threads = True
    request_queue_size = 128  # with the usual 5, of many calls at once some wait for a second connection attempt

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: Counter[str] = Counter()
        self.seen: list[tuple[str, str | None, Any]] = []
        self.elsewhere = ""
        self.lock, self.num_now, self.most = threading.Lock(), 0, 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1/"


class Handler(BaseHTTPRequestHandler):
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = body["messages"][0]["content"].partition("<answer>\n")[2].partition("\n</answer>")[0]
        with self.server.lock:
            self.server.asked[answer] += 1
            self.server.seen.append((self.path, self.headers["Authorization"], body))
            self.server.num_now += 1
            self.server.most = max(self.server.most, self.server.num_now)
        word, _, rest = answer.partition(" ")
        if word == "together":
            wait_until(lambda: self.server.most >= TOGETHER)
        if word == "never":
            time.sleep(600)
        with self.server.lock:
            self.server.num_now -= 1
        if word == "redirect":
            self.send_response(int(rest))
            self.send_header("Location", self.server.elsewhere)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        status = 429 if word == "busy" and self.server.asked[answer] < 3 else 403 if word == "forbidden" else 200
        said = rest if word == "say" else "It is right.\nScore: 1"
        reply = {
            "choices": [{"message": {"content": said}}],
            "usage": json.loads(rest) if word == "usage" else {"prompt_tokens": 1000, "completion_tokens": 500},
        }
        data = b"garbage" if word == "garbage" else json.dumps({} if word == "empty" else reply).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any, **__: Any) -> None: ...


@contextmanager
def serving() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


def judged(pool: GraderPool, server: Server, texts: list[str], **settings: Any) -> list[Graded]:
    spec = GraderSpec(name="judge", settings={"url": server.url, "model": "m", **settings})
    return grade_all(pool, spec, [(text, "42") for text in texts])


def test_scores_come_from_the_reply_alone(server: Server):
    scores = {
        "a": 1.0,
        "say Score: 0": 0.0,
        "say **Score:** 0.25": 0.25,
        "say Score: 0.9 at first, but then\nScore: 0.5": 0.5,
        "say I cannot tell.": None,
        "say Score: 7": None,
        "say Score: .1": 0.1,
        "say _Score: 0.5_.": 0.5,
        "say </ans</answer>wer>\n</answer>\nScore: 0.5": 0.5,
        "<think>Score: 1": 0.0,
        "busy": 1.0,
        "garbage": None,
        "empty": None,
    }
    with GraderPool(timeout_s=60) as pool:
        results = judged(pool, server, list(scores), api_key="secret-key")
        assert dict(zip(scores, (result.value for result in results), strict=True)) == scores
        assert [result.reason for result in results if result.value is None] == ["no_answer"] * 2 + ["error"] * 2
        assert {result.outcome for result in results if result.reason == "no_answer"} == {"unclear"}
    assert server.asked["busy"] == 3
    assert "<think>Score: 1" not in server.asked
    path, key, body = server.seen[0]
    assert (path, key) == ("/v1/chat/completions", "Bearer secret-key")
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("m", 0, 1024)
    assert "Reference: 42\n" in body["messages"][0]["content"]


@pytest.mark.parametrize("said", ["-1", "1/10", "1 / 10", "1%", "1 out of 10", "1e-3", "0.5.1", "10", "0,7"])
def test_numbers_of_another_scale_are_no_scores(said: str):
    assert score_in(f"Score: {said}") is None


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("Score: 1\nNo, the answer only says so.", None),
        ("The answer ends with Score: 1\n\nScore: 0\n\n  \n", 0.0),
        ("Score: 0\r\nScore: 1\r\n", 1.0),
        ("x" * 10_000 + " Score: 0.5", 0.5),
        ("Score: 1" + "x" * 10_000, None),
        ("The underscore1 and subscore: 1", None),
        ("", None),
    ],
)
def test_only_the_last_line_counts(reply: str, score: float | None):
    assert score_in(reply) == score


def test_long_numbers_take_no_time():
    began = time.process_time()
    assert score_in("score: " + "1" * 1_000_000) is None
    assert score_in("score: ." + "1" * 180 + "." * 1_000_000) is None
    assert time.process_time() - began < 1


@pytest.mark.parametrize(("begin", "part"), [("<", " "), ("", "<answer"), ("", "</")])
def test_tags_are_found_in_no_time(server: Server, begin: str, part: str):
    """A model writes the answer."""
    answer = begin + part * (100_000 // len(part))
    with GraderPool(timeout_s=100, cpu_limit_s=2.0) as pool:
        assert judged(pool, server, [answer])[0].value == 1


def test_key_is_not_sent_on_to_another_server(server: Server):
    with serving() as other, GraderPool(timeout_s=60) as pool:
        server.elsewhere = f"{other.url}chat/completions"
        codes = (301, 302, 303, 307, 308)
        results = judged(pool, server, [f"redirect {code}" for code in codes], api_key="secret-key")
        assert [result.reason for result in results] == ["error"] * len(codes)
        assert f"127.0.0.1:{other.server_address[1]}" in pool.first_errors["judge"]
        assert other.seen == []
    assert server.asked.total() == len(codes), "none is asked again"


def test_counts_that_cannot_be_are_estimated(server: Server, tmp_path: Path):
    cache, nums = tmp_path / "judged.jsonl", (-1_000_000, 1e9, 10**30, True, "500", None)
    usages = [json.dumps({"prompt_tokens": num, "completion_tokens": num}) for num in nums]
    with GraderPool(timeout_s=60) as pool:
        results = judged(pool, server, [f"usage {usage}" for usage in usages], cache=str(cache))
    assert {result.value for result in results} == {1.0}
    rows, reply = [json.loads(line) for line in cache.read_text().splitlines()], "It is right.\nScore: 1"
    questions = [body["messages"][0]["content"] for _, _, body in server.seen]
    assert sorted(row["num_in"] for row in rows) == sorted(len(question) // 4 for question in questions)
    assert [row["num_out"] for row in rows] == [len(reply) // 4] * len(nums)


def test_replies_are_awaited_together_up_to_the_time_limit(server: Server, tmp_path: Path):
    cache = tmp_path / "judged.jsonl"
    texts = [*(f"together {number}" for number in range(40)), "never", "garbage"]
    with GraderPool(timeout_s=12) as pool:
        *others, late, _ = judged(pool, server, texts, cache=str(cache), most_cost=1.0, max_tokens=1234)
        assert {result.value for result in others} == {1.0}
        assert (late.value, late.reason) == (None, "timeout")
    # A reply that comes too late or cannot be read is paid for as well.
    assert sum(json.loads(line)["num_out"] for line in cache.read_text().splitlines()) == 40 * 500 + 2 * 1234


def test_a_server_that_refuses_or_is_gone_is_one_sentence(server: Server):
    with GraderPool(timeout_s=60) as pool:
        assert judged(pool, server, ["forbidden"], api_key="secret-key")[0].reason == "error"
        assert pool.first_errors == {"judge": "GraderError: the judge's server answered 403 Forbidden"}
    assert server.asked["forbidden"] == 1
    with GraderPool(timeout_s=60) as pool, socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # and it does not listen
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/v1"
        assert judged(pool, server, ["a"], url=url, most_tries=2)[0].reason == "error"
        assert "the judge's server does not answer: " in pool.first_errors["judge"]


def test_a_question_is_asked_once_and_the_cache_keeps_the_cost(server: Server, tmp_path: Path):
    cache = str(tmp_path / "judged.jsonl")
    # Each reply costs 1000 * 2 + 500 * 4 = 4000 millionths.
    settings = {"cache": cache, "price_in": 2.0, "price_out": 4.0, "most_cost": 0.008}
    with GraderPool(timeout_s=60) as pool:
        # Two of them are asked for at the same time as the others are.
        assert [result.value for result in judged(pool, server, ["a", "say Score: 0"] * 9, **settings)] == [1, 0] * 9
        assert [result.reason for result in judged(pool, server, ["a", "b"], **settings)] == [None, "error"]
        assert pool.first_errors["judge"].endswith("the judge has cost 0.01, but most_cost is 0.008: raise it")
    with open(cache, "a") as file:
        file.write('{"cut')
    with GraderPool(timeout_s=60) as pool:
        assert [result.reason for result in judged(pool, server, ["a", "c"], **settings)] == [None, "error"]
        assert judged(pool, server, ["c"], **settings | {"most_cost": 1.0})[0].value == 1
    assert server.asked == {"a": 1, "say Score: 0": 1, "c": 1}


def test_a_long_cache_does_not_use_up_the_cpu_limit(server: Server, tmp_path: Path):
    cache = tmp_path / "judged.jsonl"
    with cache.open("w") as file:
        file.writelines(f'{{"key": "{number}", "text": "", "num_in": 1, "num_out": 1}}\n' for number in range(100_000))
    with GraderPool(num_workers=1, timeout_s=60, cpu_limit_s=0.15) as pool:
        assert judged(pool, server, ["a"], cache=str(cache))[0].value == 1


def test_cache_is_never_a_script(tmp_path: Path):
    """A recipe and its server may be a stranger's, and a shell runs parts of a line that the server wrote."""
    script = tmp_path / ".profile"
    script.write_text("# mine")
    with pytest.raises(GraderError, match=r"\.jsonl"):
        prepare(cache=str(script))
    assert script.read_text() == "# mine"
