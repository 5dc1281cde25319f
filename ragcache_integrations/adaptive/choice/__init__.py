"""What fits into the memory that is free: candidates, load, reservations."""
