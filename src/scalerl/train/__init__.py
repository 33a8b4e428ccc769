"""The training half: the loop, what a step computes, and the one place that wires a run together (run.py)."""
