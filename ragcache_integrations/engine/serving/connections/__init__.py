"""What clients may send before a key is checked."""
