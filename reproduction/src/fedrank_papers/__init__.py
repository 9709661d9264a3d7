"""The papers behind fedrank: their tables and figures as experiments, and published next to measured values."""
