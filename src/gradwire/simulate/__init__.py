"""Simulate: computes in virtual time what training on a given network would do."""
