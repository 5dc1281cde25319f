"""Saving and loading a cache."""

from .key_encoding import decode_key, decode_learning, encode_key, encode_learning
from .reading import read
from .writing import capture, check_arguments, write

__all__ = [
    "capture",
    "check_arguments",
    "decode_key",
    "decode_learning",
    "encode_key",
    "encode_learning",
    "read",
    "write",
]
