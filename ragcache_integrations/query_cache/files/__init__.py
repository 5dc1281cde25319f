"""Saving and loading a cache."""

from .key_encoding import encode_key
from .reading import read
from .writing import capture, check_arguments, write

__all__ = ["capture", "check_arguments", "encode_key", "read", "write"]
