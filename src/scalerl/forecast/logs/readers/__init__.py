"""Readers of logs: the bytes of a file become rows. What a column means is decided later, from the rows alone."""
