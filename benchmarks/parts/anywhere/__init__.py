"""Parts of the benchmark of reuse anywhere."""
