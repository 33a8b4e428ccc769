"""Where real curves and logs lie when they are at hand; tests that need them skip where they are not."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data"
needs_shared_data = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no real data at {FOLDER}")
