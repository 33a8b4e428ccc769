"""A pool of child processes, limited in time and memory, for graders that may hang or crash."""
