"""Graders: whether an answer is right, and the child processes that run graders which may hang or crash."""
