"""What tests of sandboxes share."""

import shutil

import pytest

needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
