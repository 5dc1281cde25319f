"""The tree under simulated traffic and recorded traces."""
