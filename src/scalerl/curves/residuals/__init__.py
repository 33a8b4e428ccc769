"""Tests of the residuals of a fit, and noise that is not independent."""
