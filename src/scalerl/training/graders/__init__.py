"""Graders judge answers. Child processes run the graders that may hang or crash."""
