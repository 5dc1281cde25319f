"""Retrievers with a query cache in front of any store."""
