"""Retrievers over staged search."""
