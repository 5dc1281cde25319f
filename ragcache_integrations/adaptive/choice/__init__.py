"""The best configuration that fits the free memory: candidates, load, reservations."""
