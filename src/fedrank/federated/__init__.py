"""Federated learning: clients, rounds, aggregators and server steps."""
