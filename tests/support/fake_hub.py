"""A hub of models on this machine: a folder is served as the hub serves a model's files."""

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def fake_hub(folder: Path | None, *, first_answer_s: float = 0.0) -> Iterator[tuple[str, list[str]]]:
    """Its address, and what was asked of it: "HEAD /owner/name/resolve/main/config.json". Of no folder: it hangs up."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            requests.append(f"{self.command} {self.path}")
            if folder is None:
                return
            if len(requests) == 1:
                time.sleep(first_answer_s)
            file = folder / Path(self.path).name
            listing = _listing(folder, self.path)
            exists = listing is not None or ("/resolve/" in self.path and file.is_file())
            content = json.dumps(listing).encode() if listing is not None else file.read_bytes() if exists else b""
            self.send_response(200 if exists else 404)
            if exists:
                self.send_header("ETag", hashlib.sha256(content).hexdigest())
            else:
                self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_GET = do_HEAD = answer

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _listing(folder: Path, path: str) -> object:
    """What the hub says about a model and about its files; None for another path."""
    if "/revision/" in path:
        return {"id": "org/small", "sha": COMMIT}
    if "/tree/" in path:
        return [
            {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": file.name}
            for file in folder.iterdir()
        ]
    return None
