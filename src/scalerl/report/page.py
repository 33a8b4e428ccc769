"""The report as one HTML file: opens from disk, asks nothing of the network, draws from the JSON it holds."""

import json
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from scalerl import __version__

SCRIPTS = ("curves.js", "charts.js", "report.js", "page.js")
POLICY = (
    "default-src 'none'; script-src 'sha256-{script}'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)
"""What the page may do: run the one script that it was written with, and ask nothing of the network."""


def asset(name: str) -> str:
    return (files("scalerl") / "assets" / "report" / name).read_text(encoding="utf-8")


def page(content: Mapping[str, Any]) -> str:
    """Return the whole file, from the report's JSON alone."""
    script = "\n".join(map(asset, SCRIPTS))
    return Template(asset("page.html")).substitute(
        policy=POLICY.format(script=b64encode(sha256(f"\n{script}\n".encode()).digest()).decode()),
        title=escape(content["title"]),
        style=asset("report.css"),
        summary=escape(" ".join(content["summary"][content["sets"][0]["name"]])),
        report=asset("report.html"),
        words=asset("words.html"),
        version=escape(__version__),
        # A name that holds "</script>" must not end the script.
        data=json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        script=script,
    )
