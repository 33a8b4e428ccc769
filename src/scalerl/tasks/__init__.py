"""Tasks: their problems, prompts and demonstrations, and which problem is asked next."""
