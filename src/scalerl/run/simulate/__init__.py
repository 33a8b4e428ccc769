"""Simulate a run on a virtual clock: the real loop and lag rule, with generators and a learner that only take time.

schedule   generators, learner and clock; one simulated run
rates      how long things take: from a table, a run folder, or measured here
probe      measures the rates of this machine (imports torch)
plan       the best split of GPUs between generators and learner, and reward against GPU-hours
picture    the drawing
"""
