"""Environments: conversations of several turns, with tools or games, as completions that the loop trains on."""
