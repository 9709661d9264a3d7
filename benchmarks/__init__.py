"""Measurements of speed, memory and quality; `make bench` runs those of speed.

    python -m benchmarks.NAME --help

Run them from the root of a checkout, in which benchmarks and tests are packages. `--help` describes what a benchmark
measures and its options.
"""
