"""Transport: moves bytes between ranks. Lanes for the pipeline, wires under them, and their bootstrap."""
