"""Environments: conversations of several turns, with tools or games, that the loop trains on as completions."""
