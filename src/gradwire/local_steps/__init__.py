"""Local steps: every rank trains alone for H optimizer steps, then all synchronise their weights."""
