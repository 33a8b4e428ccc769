"""Recipes of other frameworks: how their settings translate to ours, and where they differ from ScaleRL."""

from scalerl.config.peers.check import FRAMEWORKS, check_recipe
from scalerl.config.peers.values import Checked, Difference, Framework, Translation

__all__ = ["FRAMEWORKS", "Checked", "Difference", "Framework", "Translation", "check_recipe"]
