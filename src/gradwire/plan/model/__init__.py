"""What a plan costs and loads, its routes, its picture, and matrices from files."""
