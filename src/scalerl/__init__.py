"""Predictable reinforcement learning for language models (arXiv 2510.13786)."""

__version__ = "0.1.0"
