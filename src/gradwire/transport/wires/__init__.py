"""Wires: gradwire's own transports, LTP, TCP and shared memory, behind one interface."""
