"""The cache as a file."""
