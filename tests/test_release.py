"""What a release consists of; test_wheel.py tries the wheel, and `make release` all that it builds."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import scalerl

ROOT = Path(__file__).parents[1]
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}


def test_version_is_the_same_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert ROOT / project["tool"]["hatch"]["version"]["path"] == Path(scalerl.__file__)
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == scalerl.__version__
    newest = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[0]
    assert newest == scalerl.__version__


def test_sdist_holds_what_it_names():
    included = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["sdist"]
    assert all((ROOT / name).exists() for name in included["include"])


@pytest.mark.parametrize(
    "name, command",
    [("ci", ".ci/run"), ("publish", "make release"), ("publish", "pypa/gh-action-pypi-publish@release/v1")],
)
def test_workflow_runs(name: str, command: str):
    assert command in list(commands(WORKFLOWS[name]))


def test_every_python_that_is_promised_is_tested():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    promised = {text.rpartition(" ")[2] for text in project["classifiers"] if ":: Python :: 3." in text}
    jobs = WORKFLOWS["ci"]["jobs"]
    main = {
        step["with"]["python-version"] for step in jobs["checks"]["steps"] if "python-version" in step.get("with", {})
    }
    assert main | set(jobs["pythons"]["strategy"]["matrix"]["python-version"]) == promised
    assert project["requires-python"] == f">={min(promised)}"


def test_only_the_job_that_publishes_may_sign():
    jobs = WORKFLOWS["publish"]["jobs"]
    assert {job for job, content in jobs.items() if "id-token" in content.get("permissions", {})} == {"publish"}
    assert all(workflow["permissions"] == {"contents": "read"} for workflow in WORKFLOWS.values())


def commands(workflow: dict[str, Any]):
    for job in workflow["jobs"].values():
        yield from (step.get("run") or step["uses"] for step in job["steps"])
