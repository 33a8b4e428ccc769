"""Read files while they are written: find runs and logs, check which files may be read, and read what was added."""
