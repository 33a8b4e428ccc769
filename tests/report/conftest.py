"""A real browser for the tests of pages; they are skipped where there is none."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest


# Not for the session: while it is open, other tests of this process cannot run an event loop.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("no Chromium is installed")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield running
        running.close()
