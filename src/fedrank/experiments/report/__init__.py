"""Read run folders, compute statistics, and render reports."""
