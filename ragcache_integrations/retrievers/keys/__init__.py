"""Cache keys: which settings and filters make two requests the same."""
