import pytest
import torch


@pytest.fixture
def float64():
    """Weights follow torch's default dtype; the exact tests want float64 throughout."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
