"""How one machine learns to rank: measures, rankers, users who click, learners."""
