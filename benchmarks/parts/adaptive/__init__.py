"""Parts of the benchmarks of ``adaptive``."""
