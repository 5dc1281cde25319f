"""Parts of the benchmarks of ``prompts``."""
