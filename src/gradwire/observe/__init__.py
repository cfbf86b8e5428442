"""Observe: records events, reads them back, and shows them: terminal, reports, metrics, other tools."""
