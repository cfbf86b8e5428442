"""Controllers: network view, step facts and job in, a decision out. Pure; time is passed in."""
