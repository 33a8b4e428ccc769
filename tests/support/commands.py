"""Run `scalerl` as a user would, inside the test's own process: starting Python and importing takes seconds."""

import contextlib
import functools
import io
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jsonschema
import typer.main

from scalerl.cli import main
from scalerl.forecast.curves.model import Posterior, posterior

# A process has one command, and builds its options once. Here it would be a third of what most commands take.
typer.main.get_command = functools.cache(typer.main.get_command)

_POSTERIORS: dict[bytes, Posterior] = {}


def remembered(*points: Any, **settings: Any) -> Posterior:
    """A posterior depends on its arguments alone, and most commands of the tests fit points that another one fitted."""
    key = pickle.dumps((points, settings))
    if key not in _POSTERIORS:
        _POSTERIORS[key] = posterior(*points, **settings)
    return _POSTERIORS[key]


SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def checked_json(text: str) -> dict:
    """Return what a command printed with --json, after checking it against the schema of the docs."""
    content = json.loads(text)
    mine = [one for one in SCHEMA["oneOf"] if content["command"] in _commands(one)]
    faults = [
        next(VALIDATOR.evolve(schema={**one, "$defs": SCHEMA["$defs"]}).iter_errors(content), None) for one in mine
    ]
    assert mine, content["command"]
    assert None in faults, (content["command"], faults[0])
    return content


def _commands(one: dict) -> list[str]:
    given = one["properties"]["command"]
    return given.get("enum") or [given["const"]]


def scalerl(*words: object, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Run one command; return its exit code and what it printed, as `subprocess.run` does.

    An error that is not meant for users propagates, so a bug fails the test with its own traceback.
    """
    argv = ["scalerl", *map(str, words)]
    stdout, stderr = io.StringIO(), io.StringIO()
    before = sys.argv
    sys.argv = argv
    try:
        with (
            contextlib.chdir(cwd or Path.cwd()),
            contextlib.redirect_stdout(stdout),
            contextlib.redirect_stderr(stderr),
            patch("scalerl.forecast.curves.fit.posterior", remembered),
        ):
            code = _exit_code()
    finally:
        sys.argv = before
    if "--json" in words and code == 0:
        checked_json(stdout.getvalue())
    return subprocess.CompletedProcess(argv, code, stdout.getvalue(), stderr.getvalue())


def answer(*words: object, cwd: Path | None = None) -> dict:
    """Return what a command prints with --json; it must succeed and print nothing else."""
    done = scalerl(*words, "--json", cwd=cwd)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def _exit_code() -> int:
    try:
        main()
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return leaving.code or 0
        sys.stderr.write(f"{leaving.code}\n")
        return 1
    return 0
