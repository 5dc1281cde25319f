"""How an answer is made of the chunks: stuff, map-rerank, map-reduce."""
