"""Inference from several curves together: pooled fits, transfer between sizes, and what to run next.

Imports numpy only.
"""

from scalerl.forecast.several.plan import ArmPlan, Candidate, Planned, plan
from scalerl.forecast.several.pool import pool
from scalerl.forecast.several.transfer import Sibling, Transfer, sibling, transfer

__all__ = [
    "ArmPlan", "Candidate", "Planned", "Sibling", "Transfer", "plan", "pool", "sibling", "transfer",
]  # fmt: skip
