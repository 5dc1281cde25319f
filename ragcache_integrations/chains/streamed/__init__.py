"""A chain whose retrieval is shown stage by stage."""
