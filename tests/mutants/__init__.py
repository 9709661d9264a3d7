"""Mutation testing: a fixed sample of small changes to the core, each of which a test should notice."""
