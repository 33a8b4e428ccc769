"""The trainer: from a recipe to a run folder. Nothing here imports `forecast`."""
