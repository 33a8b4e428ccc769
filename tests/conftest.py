import pytest
from hypothesis import HealthCheck, settings

# How long an example takes to draw says more about the machine and what else runs there than about the strategy.
settings.register_profile("scalerl", suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("scalerl")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On a GPU parts are compiled, and torch's compiler looks at the gradients of all that it traces."""
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"))
