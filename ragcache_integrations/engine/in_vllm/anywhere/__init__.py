"""Documents' KV caches at any place of any prompt, inside vLLM."""
