"""A learner over several ranks: replicated, or with weights divided among them (FSDP2).

    driver: RankedLearner --commands--> LearnerRank 0 .. n-1, one process each, joined by torch.distributed
                          <--answers; from rank 0 where its weights are--

For the loop, a RankedLearner is like any other learner. Ranks are objects in other processes (remote/): child processes
on this machine, or Ray actors placed by run/cluster.
"""
