"""``SpeculativeRAG``: generation starts before the search ends."""
