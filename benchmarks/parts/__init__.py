"""What several benchmarks need."""

import os

# Figures are those of the model with random weights: noise is as long as it is asked to be.
os.environ.setdefault("RAGCACHE_DEFAULT_MODEL", "random")
