"""Every connection that a test opens is closed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ragcache_integrations.answers.redis import SharedAnswers


@pytest.fixture(autouse=True)
def _closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    made: list[SharedAnswers[Any]] = []
    make = SharedAnswers.__init__

    def noting(self: SharedAnswers[Any], *arguments: Any) -> None:
        make(self, *arguments)
        made.append(self)

    monkeypatch.setattr(SharedAnswers, "__init__", noting)
    yield
    for shared in made:
        shared.close()
