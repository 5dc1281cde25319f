"""The order of documents in a prompt."""
