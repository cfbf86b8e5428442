"""Lanes: ordered channels that the pipeline sends on, over a process group or a wire."""
