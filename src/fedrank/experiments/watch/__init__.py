"""A page on the runs of this machine: what is running, finished, failed, and how far."""
