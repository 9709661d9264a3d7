"""A page on this machine: who may look at it, what every answer carries, and the one socket it is served on."""
