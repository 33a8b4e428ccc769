"""A fleet: one Engine over several generators, which are engines in other processes.

driver: Fleet --commands, in order--> Generator: an engine, in a process of its own
              <--reports-------------

fleet       assigns requests, returns each completion once, replaces generators that died or hang
generator   runs in the other process and samples while the driver trains
messages    what a generator reports
"""
