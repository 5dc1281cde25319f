"""The loops over keys and documents, compiled (numba) or in NumPy."""
