"""Collectives over a wire: who sends which part of a tensor to whom, who adds up, and in which order."""
