"""Tests of local_steps."""
