"""Before and after, measured on the same stream of questions: ``ragcache demo``."""
