"""Tasks: their problems, prompts and demonstrations, and the curriculum that chooses the next problem."""
