"""Place a recipe's learner and generators on devices: connect to Ray, start ranks and generators.

connect      Ray: connecting, and what can be wrong with that
place        where the learner is, what the run holds, and how many cores each process may have
ranks        the learner's ranks as Ray actors
generators   the fleet of generators that a recipe describes, and what it did in each step
"""
