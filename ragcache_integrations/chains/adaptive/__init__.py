"""Per-query configuration as a chain of each framework."""
