"""Place a recipe's learner and generators on devices: connect to Ray, start ranks and generators.

connect      connect to Ray, or say why that fails
place        the devices of the learner, the devices that the run holds, and the cores of each process
ranks        the learner's ranks as Ray actors
generators   the engine or the fleet of generators that a recipe describes, and the fleet's columns of each step
"""
