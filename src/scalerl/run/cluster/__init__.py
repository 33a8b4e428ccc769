"""Place a recipe's learner and generators on devices: connect to Ray, start the generators, check the memory.

connect      Ray: connecting, what can be wrong with that, and the GPU of the learner
generators   the fleet of generators that a recipe describes
layout       memory per device, what does not fit, and the nearest layout that does
"""
