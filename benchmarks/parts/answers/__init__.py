"""Caches of answers side by side: streams of questions, ours, and its peers."""
