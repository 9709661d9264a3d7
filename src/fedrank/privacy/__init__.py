"""WHAT LEAVES a client: clipping and noise, accounting, ledger, secure sums."""
