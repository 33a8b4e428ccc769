import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

# How long an example takes to draw says more about the machine and what else runs there than about the strategy.
settings.register_profile("scalerl", suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("scalerl")
