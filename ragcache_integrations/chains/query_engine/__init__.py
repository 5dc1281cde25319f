"""What the query engines of LlamaIndex have in common."""
