"""Parts of the benchmarks of ``modular``."""
