"""What the cache holds."""
