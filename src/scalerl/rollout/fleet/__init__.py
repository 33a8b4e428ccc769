"""A fleet: one Engine over generators, which are engines in other processes that sample by themselves.

driver: Fleet --commands, in order--> Generator: an engine, in a process of its own
              <--reports-------------

fleet       assigns requests, returns completions once, replaces generators that died or hang
generator   what runs in the other process: it samples while the driver trains
messages    what a generator reports
"""
