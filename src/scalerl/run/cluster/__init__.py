"""Place a recipe's learner and generators on devices: connect to Ray, start ranks and generators, check the memory.

connect      Ray: connecting, what can be wrong with that, and the GPU of a learner in the driver
place        where the learner is, and how many cores each process may have
ranks        the learner's ranks as Ray actors; rank_actors has the actor and its near side
generators   the fleet of generators that a recipe describes
layout       memory per device, what does not fit, and the nearest layout that does
"""
