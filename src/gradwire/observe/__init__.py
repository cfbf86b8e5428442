"""Events in, what people read out."""
