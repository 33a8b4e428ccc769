"""A document as one HTML file: it opens from disk, asks nothing of the network, and draws from the JSON it holds."""

import json
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from string import Template

from scalerl import __version__
from scalerl.report.document import Level, Section, says, to_json

SCRIPTS = ("charts.js", "document.js", "page.js")
POLICY = (
    "default-src 'none'; script-src 'sha256-{script}'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)
"""What the page may do: run the one script that it was written with, and ask nothing of the network."""


def asset(name: str) -> str:
    return (files("scalerl") / "assets" / "report" / name).read_text(encoding="utf-8")


def page(title: str, document: Sequence[Section]) -> str:
    """Return the whole file."""
    script = "\n".join(map(asset, SCRIPTS))
    answers = [each.text for each in says(document) if each.level == Level.ANSWER]
    content = {"title": title, "sections": to_json(document)}
    return Template(asset("page.html")).substitute(
        policy=POLICY.format(script=b64encode(sha256(f"\n{script}\n".encode()).digest()).decode()),
        title=escape(title),
        style=asset("report.css"),
        summary=escape(" ".join(answers)),
        words=asset("words.html"),
        version=escape(__version__),
        # A name that holds "</script>" must not end the script.
        data=json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        script=script,
    )
