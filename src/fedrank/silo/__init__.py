"""WHOSE DOCUMENTS: sketches of texts, reverse top-K, and how organisations use them together."""
