"""A training run: recipe to run folder, checkpoints, resume, the compute clock, SFT."""
