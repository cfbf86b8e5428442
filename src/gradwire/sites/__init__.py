"""Sites: ranks near each other reduce locally; leaders, failover, and processes that rejoin."""
