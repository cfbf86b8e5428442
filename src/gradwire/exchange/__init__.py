"""Flat compressed exchanges between all ranks: one file per algorithm; `select` chooses one and gives its cost."""
