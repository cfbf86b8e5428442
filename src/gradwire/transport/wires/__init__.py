"""gradwire's own transports: LTP, TCP and shared memory under one contract."""
