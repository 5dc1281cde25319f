"""The order of documents in a prompt."""

from .knobs import OrderKnobs, RequestDocuments, request_documents
from .order import DocumentOrder
from .settings import Order, OrderArguments

__all__ = [
    "DocumentOrder",
    "Order",
    "OrderArguments",
    "OrderKnobs",
    "RequestDocuments",
    "request_documents",
]
