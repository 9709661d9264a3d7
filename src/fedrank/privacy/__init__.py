"""Privacy: clipping and noise, accounting, ledgers and secure aggregation."""
