"""simulate: what would happen on this network, in virtual time."""
