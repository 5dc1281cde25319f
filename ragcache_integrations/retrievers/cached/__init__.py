"""The retrievers with a query cache."""
