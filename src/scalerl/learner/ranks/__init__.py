"""A learner over several ranks: replicated, or with weights divided among them (FSDP2).

    driver: RankedLearner --commands--> LearnerRank 0 .. n-1, one process each, joined by torch.distributed
                          <--answers, buckets of weights from rank 0--

The loop sees a RankedLearner as any other learner. Nothing here imports Ray: ranks are processes of this machine by
default, and whoever starts them elsewhere (a Ray actor) makes a LearnerRank with the same RankSpec.
"""
