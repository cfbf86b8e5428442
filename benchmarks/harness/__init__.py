"""Benchmark harness: workload x network x contestants, measured in the lab. `case.py` is the entry point."""
