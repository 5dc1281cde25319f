"""The loops over keys and documents, compiled (numba) or in NumPy."""

from .choice import kernels
from .layout import COLUMNS, EXPIRES, FREE, PARTITION, SEQUENCE, SERVES, address

__all__ = [
    "COLUMNS",
    "EXPIRES",
    "FREE",
    "PARTITION",
    "SEQUENCE",
    "SERVES",
    "address",
    "kernels",
]
