"""Specifications: a TOML file is read and checked once, and expanded into experiments."""
