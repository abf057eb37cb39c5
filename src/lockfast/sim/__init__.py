"""A seeded world of clients, servers, clocks and network, which runs the shipped flows and the shipped scripts."""
