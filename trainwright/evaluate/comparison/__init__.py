"""Runs against runs: paired by seed, and honest about what so few seeds can show."""
