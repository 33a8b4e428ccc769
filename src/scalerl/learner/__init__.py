"""The learner: from a batch of graded groups to one update of the weights."""
