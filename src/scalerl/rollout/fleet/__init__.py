"""A fleet: one Engine over several members that sample by themselves.

    driver: Fleet --commands, in order--> member: Generator (inbox -> pump thread -> engine -> outbox)
                  <--reports-----------

    messages    the commands and reports that travel between the fleet and a member
    members     the protocols of a member and of what starts it; when a member counts as lost
    generator   what runs in a member: an engine with a thread of its own, which samples while the driver trains
    fleet       assigns requests, returns completions once, replaces members that died or hang
    threads     members in this process: for tests, and for several GPUs of one machine without Ray
    ray_members members as Ray actors, on any node of a cluster
    weights     weights in buckets of bytes, for transport between processes

Only `weights` imports torch and only `ray_members` imports ray, inside functions.
"""
