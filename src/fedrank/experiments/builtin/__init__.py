"""Experiments that come with fedrank."""
