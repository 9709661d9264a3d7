"""Sketches of documents, reverse top-K, and training across the document collections of organisations."""
