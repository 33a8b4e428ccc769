"""The training loop and what it needs of an engine, a learner and a grader. No torch."""
