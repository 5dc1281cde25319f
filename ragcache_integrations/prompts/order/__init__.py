"""The order of documents in a prompt."""

from .order import DocumentOrder
from .settings import Order

__all__ = [
    "DocumentOrder",
    "Order",
]
