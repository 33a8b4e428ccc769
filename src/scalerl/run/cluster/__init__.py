"""Place a recipe's learner and generators on devices: connect to Ray, start ranks and generators, count what is held.

connect      Ray: connecting, and what can be wrong with that
place        where the learner is, and how many cores each process may have
ranks        the learner's ranks as Ray actors
generators   the fleet of generators that a recipe describes
meter        what the fleet did in each step, and the devices that a run holds
"""
