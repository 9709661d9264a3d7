"""Questions put to all of the rest: spec, run, store, statistics, report."""
