"""Facts about vector stores: metric, exactness, where vectors are, how changes are told."""
