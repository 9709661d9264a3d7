"""The engine room: every compiled loop. Arrays and numbers in, arrays out.

No objects, no printing, no global state. Each kernel has a slow, obvious twin in `tests/oracles/`.
"""
