"""The loops over keys and documents, compiled or in NumPy."""
