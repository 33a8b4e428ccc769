"""A learner over several ranks: replicated, or with weights divided among them (FSDP2).

    driver: RankedLearner --commands--> LearnerRank 0 .. n-1, one process each, joined by torch.distributed
                          <--answers; from rank 0 where its weights are--

The loop sees a RankedLearner as any other learner. Ranks are objects in other processes (remote/): child processes of
this machine, or Ray actors that run/cluster has placed.
"""
