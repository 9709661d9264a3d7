"""Experiments of the papers as TOML files, one folder per paper."""
