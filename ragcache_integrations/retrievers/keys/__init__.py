"""When two requests are the same."""
