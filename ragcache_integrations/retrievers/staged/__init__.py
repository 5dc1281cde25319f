"""The staged retrievers."""
