"""The connected clients, and how much of the server each of them uses.

A client is an IPv4 address or an IPv6 network of 64 bits, which one subscriber usually has.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

__all__ = ["Client", "Clients"]

SUBSCRIBER_BITS = 64


@dataclass(slots=True, eq=False)
class Client:
    """A client and its use of the server.

    Attributes:
        name: Its address or network; ``None`` for a Unix socket.
        connections: Number of open connections.
        held_bytes: Size of its unfinished bodies.
    """

    name: str | None
    connections: int = 0
    held_bytes: int = 0


class Clients:
    """The connected clients.

    Args:
        most: The most connections of a client; 0 for no limit.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._connected: dict[str | None, Client] = {}

    def __len__(self) -> int:
        return len(self._connected)

    def enter(self, address: str | None) -> Client:
        """Count a new connection.

        Args:
            address: The client's address; ``None`` for a Unix socket, which is not limited.
        """
        name = None if address is None else _name(address)
        client = self._connected.setdefault(name, Client(name))
        client.connections += 1
        return client

    def leave(self, client: Client) -> None:
        """Count a connection that has ended."""
        client.connections -= 1
        if not client.connections:
            del self._connected[client.name]

    def excess(self, client: Client) -> int:
        """How many connections a client has beyond the limit."""
        if not self._most or client.name is None:
            return 0
        return max(0, client.connections - self._most)


def _name(address: str) -> str:
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(IPv6Address(int(parsed) >> SUBSCRIBER_BITS << SUBSCRIBER_BITS))
    return str(parsed)
