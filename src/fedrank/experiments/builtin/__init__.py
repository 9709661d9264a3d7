"""Experiments that are included in fedrank."""
