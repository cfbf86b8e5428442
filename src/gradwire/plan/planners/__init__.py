"""Planners: one pure function each, from a matrix of links and a job to trees."""
