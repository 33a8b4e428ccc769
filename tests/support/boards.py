"""A board in a process of its own, as `scalerl watch` starts it, and run folders that grow while it looks."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from html import unescape
from pathlib import Path
from typing import Any, Self
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen


class ServedBoard:
    """`scalerl watch` on some paths; ends with the block."""

    def __init__(self, *paths: Path, options: tuple[str, ...] = ("--port", "0")) -> None:
        self._command = [sys.executable, "-m", "scalerl", "watch", *map(str, paths), "--no-open", *options]
        self.link = ""
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.link = self.process.stdout.readline().rpartition(" ")[2].strip()
        assert self.link.startswith("http"), "the board did not start"
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process is not None
        self.process.terminate()
        self.process.wait(timeout=300)
        assert self.process.stdout is not None
        self.process.stdout.close()

    @property
    def port(self) -> int:
        return urlsplit(self.link).port or 0

    @property
    def token(self) -> str:
        return urlsplit(self.link).path.strip("/")

    def get(
        self,
        path: str,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        *,
        token: str | None = None,
        **query: Any,
    ) -> Any:
        """Return (status, headers, body) of a request for a path below the token; assets are beside it."""
        below = "" if path.startswith("/assets/") else f"/{self.token if token is None else token}"
        address = f"http://127.0.0.1:{self.port}{below}{path}?{urlencode(query)}"
        try:
            with urlopen(Request(address, method=method, headers=dict(headers or {})), timeout=300) as answer:
                return answer.status, answer.headers, answer.read()
        except HTTPError as error:
            with error:
                return error.code, error.headers, error.read()

    def page(self, key: str = "") -> str:
        """Return the page of a key, or the overview; empty where there is none yet."""
        status, _, body = self.get(f"/{key}")
        return body.decode() if status == 200 else ""

    def runs(self) -> dict[str, str]:
        """Return the keys of all runs, logs and studies by their names in the overview."""
        page = self.page()
        links = re.findall(r'<td[^>]*><a href="(\w+)">([^<]*)</a>', page)
        title = re.findall("<title>(.*)</title>", page)[0]
        # The overview of a single run is its page.
        if not links and title != "scalerl watch":
            links = [("", title)]
        return {unescape(name or title): key for key, name in links}


class GrowingRun:
    """A run folder to which evaluations and steps are added one by one, towards a ceiling and past a collapse."""

    def __init__(self, folder: Path, *, budget_steps: int = 400, ceiling: float = 0.6) -> None:
        self.folder, self.step, self._ceiling = folder, 0, ceiling
        folder.mkdir(parents=True)
        recipe = {"seed": 0, "budget": {"steps": budget_steps}, "pipeline": {"max_lag": 8}}
        (folder / "recipe.json").write_text(json.dumps(recipe))
        (folder / "status.json").write_text(json.dumps({"status": "running", "reason": ""}))
        self.evaluate()

    def append(self, name: str, row: Mapping[str, Any]) -> None:
        with (self.folder / name).open("a") as file:
            file.write(json.dumps(row) + "\n")

    def spent(self) -> dict[str, float]:
        return {"gpu_hours": 0.01 * self.step, "flops": 1e15 * self.step, "tokens": 5000 * self.step}

    def evaluate(self, reward: float | None = None) -> None:
        gain = (self._ceiling - 0.2) / (1 + (60 / self.step) ** 1.6) if self.step else 0.0
        noise = 0.004 * (((self.step * 7919) % 13) / 6 - 1)
        value = 0.2 + gain + noise if reward is None else reward
        row = {"step": self.step, "attempt": 1, "set": "main", **self.spent(), "reward": value, "num_samples": 2000}
        self.append("evals.jsonl", {**row, "prompts_hash": "p", "num_correct": [round(20 * value)] * 100})

    def train(self, num: int, **signals: float) -> None:
        for _ in range(num):
            self.step += 1
            usual = {
                "reward/mean": 0.1, "loss/entropy": 0.5, "loss/kl": 0.001, "rollout/truncated_frac": 0.02,
                "rollout/lag_mean": 3.0 + self.step % 3, "rollout/lag_max": 7.0, "rollout/length_mean": 40.0,
                "time/step_s": 0.3, "time/wait_s": 0.5, "time/push_s": 0.01, "time/training_s": 36.0 * self.step,
                "time/evaluation_s": 2.0 * self.step,
            }  # fmt: skip
            self.append("metrics.jsonl", {"step": self.step, "attempt": 1, **self.spent(), **usual, **signals})

    def sample(self, problem: str, completion: str, **more: Any) -> None:
        row = {"problem": problem, "prompt": f"{problem}=", "completion": completion, "answer": "4", "correct": True}
        self.append("samples.jsonl", {"step": self.step, "attempt": 1, **row, "reward": 1.0, **more})
