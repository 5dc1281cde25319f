"""Dynamic speculative pipelining as a chain of each framework."""
