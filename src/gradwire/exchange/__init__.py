"""Flat compressed exchanges between all ranks: one file per algorithm, one that selects and costs them."""
