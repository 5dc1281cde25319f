"""Synthesis methods: stuff, map-rerank, map-reduce."""
