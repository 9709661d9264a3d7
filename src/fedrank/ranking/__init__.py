"""Learning to rank on one machine: measures, rankers, click models and learners."""
