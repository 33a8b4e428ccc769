"""A study: arms and seeds from one file, run as commands, resumable."""
