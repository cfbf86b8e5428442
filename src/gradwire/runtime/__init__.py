"""The session of one model on one rank: governors, bucket paths, the pipeline of exchanges, and their construction."""
