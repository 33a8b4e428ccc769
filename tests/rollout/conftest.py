import pytest

pytest.register_assert_rewrite("contracts.engine", "contracts.sampling", "contracts.requests")
