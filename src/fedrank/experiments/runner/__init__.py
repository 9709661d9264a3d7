"""Executes experiments: each run in its own folder, in any number of processes."""
