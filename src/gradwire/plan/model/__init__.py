"""Models of a plan: load and cost, routes, its drawing, and matrices from files."""
