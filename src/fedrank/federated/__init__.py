"""How many learn together: clients, the round, aggregators, server steps."""
