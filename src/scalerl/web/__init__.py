"""Servers and clients of the web, standard library only."""
