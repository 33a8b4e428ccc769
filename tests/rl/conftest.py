"""Shapes and dtypes of scalerl.rl are checked in every test: the hook must be in place before its first import.

Not where there is a GPU: parts are compiled there, and a compiler would trace the checks, which users do not have.
"""

import pytest
import torch
from jaxtyping import install_import_hook

if not torch.cuda.is_available():
    install_import_hook("scalerl.rl", "beartype.beartype")


@pytest.fixture
def float64():
    """Weights follow torch's default dtype; the exact tests want float64 throughout."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
