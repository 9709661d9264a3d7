"""Rounds on a GPU: CUDA versions of the compiled loops, with the same results bit for bit."""
