"""Payload + deadline -> Delivery: the ways bytes travel between ranks."""
