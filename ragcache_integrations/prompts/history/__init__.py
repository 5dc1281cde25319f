"""Conversations that keep their prefix from turn to turn and stay within the context window."""
