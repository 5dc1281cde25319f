"""Commands that the program ``ragcache`` finds by entry points."""
