"""The tree under simulated traffic."""
