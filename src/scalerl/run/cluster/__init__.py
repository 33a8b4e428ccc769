"""From a recipe's layout to devices: Ray, generators, and what fits where.

connect      Ray: connecting, what can be wrong with that, and the GPU of the learner
generators   the fleet of generators that a recipe describes
layout       memory per device, what does not fit, and the nearest layout that does
"""
