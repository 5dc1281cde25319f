"""Limits on clients before their key is checked: sizes, timeouts, framing."""

from .clients import Clients
from .protocol import Bounds, bound_connections

__all__ = ["Bounds", "Clients", "bound_connections"]
