"""The order of documents in a prompt."""

from .knobs import OrderKnobs, RequestDocuments, request_documents
from .order import DocumentOrder
from .settings import Order

__all__ = [
    "DocumentOrder",
    "Order",
    "OrderKnobs",
    "RequestDocuments",
    "request_documents",
]
