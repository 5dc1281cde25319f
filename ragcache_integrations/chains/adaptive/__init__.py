"""``AdaptiveRAG``: number of chunks and synthesis chosen for each query."""
