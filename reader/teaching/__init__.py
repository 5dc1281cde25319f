"""What teaches SmolLM2 to answer from documents, whole or block by block; see README.md."""
