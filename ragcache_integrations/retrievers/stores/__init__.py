"""Vector stores: facts, vectors, changes."""
