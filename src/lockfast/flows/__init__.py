"""Algorithms as generators: they yield effects and are sent the answers. No clock, socket, thread or randomness."""
