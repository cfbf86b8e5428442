"""Compression: gradient and residual in, frames out. What a frame does not carry stays in the residual."""
