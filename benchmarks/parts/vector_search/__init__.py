"""Parts of the benchmarks of ``vector_search``."""
