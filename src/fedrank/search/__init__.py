"""Whose search: one person's documents on one device, the order learned from that person's clicks."""
