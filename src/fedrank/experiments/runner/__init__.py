"""Doing it: every experiment in a run folder of its own, in any number of processes."""
