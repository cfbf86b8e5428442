"""Device memory: streams, events and copies of gradients that are not in host memory."""
