"""Parts of the benchmarks of ``query_cache``."""
