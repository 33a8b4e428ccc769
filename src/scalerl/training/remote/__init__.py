"""Objects in other processes: they take commands in order and report, and their death is noticed.

Ranks of the learner and generators are such objects. The driver uses a Peer, wherever the object runs.

    driver: Peer --commands--> Link ... serve: the object, in its process
                 <--answers, reports, signs of life--

    serve     the loop in the other process: execute commands, and let the object work between them
    peer      the driver's side: messages of the object, and when it counts as lost
    child     a link to a child process on this machine, with any interpreter; everything is cleaned up at its end
    actors    a link to a Ray actor, on any node of a cluster
    weights   send weights between processes: shared memory, GPU memory, Ray's object store
    session   end the processes of a child and remove its files

`ray` is imported in `actors` and `weights`, inside functions, and torch only where it is used.
"""
