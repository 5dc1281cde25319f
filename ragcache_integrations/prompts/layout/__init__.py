"""Templates that put first what changes least."""
