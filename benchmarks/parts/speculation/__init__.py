"""Parts of the benchmarks of ``speculation``."""
