"""The predictive half: logs to curves, curves to decisions, decisions to words. Never imports torch."""
