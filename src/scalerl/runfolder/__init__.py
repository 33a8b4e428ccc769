"""The run folder: names of files and columns, rows, atomic writes. All that both halves know of each other."""
