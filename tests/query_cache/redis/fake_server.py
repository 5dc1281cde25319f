"""A server that speaks the Redis protocol and answers whatever a test likes."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

Answer = Callable[[socket.socket], None]


def _serve(client: socket.socket, answer: Answer) -> None:
    with client, contextlib.suppress(OSError):
        while client.recv(1 << 16):
            answer(client)


def _accept(listening: socket.socket, answer: Answer) -> None:
    with contextlib.suppress(OSError):
        while True:
            client, _ = listening.accept()
            threading.Thread(target=_serve, args=(client, answer), daemon=True).start()


@contextlib.contextmanager
def fake_redis(answer: Answer) -> Iterator[str]:
    """Answer every command so; yields the URL."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_accept, args=(listening, answer), daemon=True).start()
        yield f"redis://127.0.0.1:{listening.getsockname()[1]}/0"
        listening.shutdown(socket.SHUT_RDWR)


def say(content: bytes) -> Answer:
    """Answer with these bytes."""
    return lambda client: client.sendall(content)


def drip(begin: bytes, piece: bytes = b"x", pause: float = 0.01) -> Answer:
    """Answer so, and then with a piece now and then, until the connection ends."""

    def answer(client: socket.socket) -> None:
        client.sendall(begin)
        waiting = threading.Event()
        while True:
            client.sendall(piece)
            waiting.wait(pause)

    return answer


def flood(begin: bytes, piece: bytes) -> Answer:
    """Answer so, and then with as much as is read."""

    def answer(client: socket.socket) -> None:
        client.sendall(begin)
        while True:
            client.sendall(piece)

    return answer
