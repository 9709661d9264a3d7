"""Search over one person's documents on one device; the ranking is learned from that person's clicks."""
