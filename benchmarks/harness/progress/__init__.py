"""Progress: loss against seconds and against steps, of every level and controller on every network, in virtual time."""
