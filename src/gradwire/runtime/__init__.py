"""One model's session on one rank: decisions, buckets, the pipeline of exchanges, and how it is built."""
