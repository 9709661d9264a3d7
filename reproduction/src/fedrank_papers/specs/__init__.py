"""Experiments of the papers as TOML files, one folder for each paper."""
