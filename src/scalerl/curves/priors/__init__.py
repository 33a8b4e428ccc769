"""Priors that are learnt from other runs, and fits that use them."""
