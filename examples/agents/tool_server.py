"""A tool server for scalerl, to run in a container; every conversation has its own database.

    python examples/agents/tool_server.py --port 8700

    [task.environment]
    name = "tools"
    servers = ["http://127.0.0.1:8700"]

The protocol is in docs/environments.md. Standard library only. With the variable TOOLS_KEY set, callers must send it as
a bearer token.
"""

import argparse
import hmac
import json
import os
import sqlite3
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MOST_SESSIONS, OLDEST_S, MOST_ROWS, MOST_STEPS = 1000, 3600.0, 20, 1_000_000
REFUSED = (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_PRAGMA)
SCHEMAS = [
    {
        "type": "function",
        "function": {
            "name": "query",
            "description": "Run one statement of SQL (SQLite) on a database of your own, empty at first.",
            "parameters": {
                "type": "object",
                "properties": {"sql": {"type": "string", "description": "The statement."}},
                "required": ["sql"],
            },
        },
    }
]


class Session:
    """One conversation: its database, and the reply to its last call."""

    def __init__(self) -> None:
        self.lock, self.used = threading.Lock(), time.monotonic()
        self.database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self.database.execute("pragma max_page_count = 4096")
        self.database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1_000_000)
        # No statement reads or writes a file, or changes these limits.
        self.database.set_authorizer(lambda action, *_: action in REFUSED)
        self.last: tuple[int, dict[str, str]] = (-1, {})

    def reply(self, number: int, name: str, arguments: dict[str, Any]) -> dict[str, str]:
        with self.lock:
            self.used = time.monotonic()
            if number != self.last[0]:
                self.last = number, self._query(name, arguments)
            return self.last[1]

    def _query(self, name: str, arguments: dict[str, Any]) -> dict[str, str]:
        if name != "query" or not isinstance(sql := arguments.get("sql"), str):
            return {"error": 'the tool is called "query" and takes a text "sql"'}
        steps = iter(range(MOST_STEPS // 1000))
        # Ends a statement that runs for too long.
        self.database.set_progress_handler(lambda: next(steps, None) is None, 1000)
        try:
            rows = self.database.execute(sql).fetchmany(MOST_ROWS)
        except sqlite3.Error as error:
            return {"error": str(error)}
        return {"result": "\n".join(" | ".join(map(str, row)) for row in rows) or "done"}


class Handler(BaseHTTPRequestHandler):
    sessions: dict[str, Session] = {}  # noqa: RUF012 -- of the server
    lock = threading.Lock()
    timeout = 60

    def do_POST(self) -> None:
        key = os.environ.get("TOOLS_KEY", "")
        if key and not hmac.compare_digest(self.headers.get("Authorization", ""), f"Bearer {key}"):
            self.send_error(401)
            return
        try:
            body = json.loads(self.rfile.read(min(int(self.headers["Content-Length"]), 1_000_000)))
            reply = self.answered(self.path, body)
        except (ValueError, TypeError, KeyError):
            self.send_error(400)
            return
        text = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def answered(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path == "/tools":
            return {"tools": SCHEMAS}
        if path == "/call":
            return self.session(body["session"]).reply(body["number"], body["name"], body["arguments"])
        if path == "/end":
            with self.lock:
                self.sessions.pop(body["session"], None)
            return {}
        raise KeyError(path)

    def session(self, name: str) -> Session:
        """Return a session; drop old sessions that were never ended."""
        with self.lock:
            old = time.monotonic() - OLDEST_S
            for other in [key for key, each in self.sessions.items() if each.used < old]:
                del self.sessions[other]
            if name not in self.sessions and len(self.sessions) >= MOST_SESSIONS:
                del self.sessions[min(self.sessions, key=lambda key: self.sessions[key].used)]
            return self.sessions.setdefault(name, Session())

    def log_message(self, *args: Any, **_: Any) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8700)
    arguments = parser.parse_args()
    with ThreadingHTTPServer((arguments.host, arguments.port), Handler) as server:
        print(f"tools at http://{arguments.host}:{server.server_address[1]}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
