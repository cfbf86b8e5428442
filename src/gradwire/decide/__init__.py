"""View, facts and job in, Decision out: pure, with time passed in."""
