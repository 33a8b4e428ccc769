"""Inference from several curves together: pooled fits, learned priors, transfer between sizes, and what to run next.

Imports numpy only.
"""

from scalerl.forecast.several.plan import ArmPlan, Candidate, Planned, plan
from scalerl.forecast.several.pool import pool
from scalerl.forecast.several.population import Member, learn_prior, member
from scalerl.forecast.several.prior_file import PriorFile, read_prior
from scalerl.forecast.several.transfer import Sibling, Transfer, sibling, transfer

__all__ = [
    "ArmPlan", "Candidate", "Member", "Planned", "PriorFile", "Sibling", "Transfer", "learn_prior", "member", "plan",
    "pool", "read_prior", "sibling", "transfer",
]  # fmt: skip
