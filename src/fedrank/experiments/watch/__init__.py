"""A local web page that follows runs: running, finished, failed, and their progress."""
