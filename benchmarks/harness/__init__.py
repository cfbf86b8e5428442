"""The bench: workload x network x contestants, measured together in the lab. `case.py` is where a case file begins."""
