"""Measurements of speed, memory and quality; `make bench` runs those of speed.

    python -m benchmarks.NAME --help

Run them from the root of a checkout, in which benchmarks and tests are packages. `--help` says what one measures and
which options it has; none measures anything before it has read its options.
"""
