"""One member's tree all-reduce over a plan."""
