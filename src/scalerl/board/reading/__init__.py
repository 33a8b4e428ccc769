"""Reading files while they are written: which may be read, what was added, which runs and logs there are."""
