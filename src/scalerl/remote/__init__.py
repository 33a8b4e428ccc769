"""An object in another process: it takes commands in order, reports, and is missed when it dies.

A rank of the learner and a generator are such objects. Whoever uses one holds a Peer and does not know where it runs.

    driver: Peer --commands--> Link ... serve: the object, in its process
                 <--answers, reports, signs of life--

    serve     the loop in the other process: obey commands, let the object work by itself between them
    peer      the driver's side: what the object says, and when it counts as lost
    child     a link to a child process of this machine, by any interpreter; nothing of it is left behind
    actors    a link to a Ray actor, on any node of a cluster
    weights   weights on their way between processes: shared memory, a GPU's memory, Ray's object store
    session   the processes and files of a child: how both are ended

`ray` is imported in `actors` and `weights`, inside functions, and torch only where it is used.
"""
