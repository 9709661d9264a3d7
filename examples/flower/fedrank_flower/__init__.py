"""A Flower app that trains a fedrank federation."""
