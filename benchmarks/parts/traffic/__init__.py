"""Questions, streams of them, and load."""
