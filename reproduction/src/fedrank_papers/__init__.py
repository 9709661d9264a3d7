"""The papers behind fedrank: their tables and figures as experiments, and published values next to measured ones."""
