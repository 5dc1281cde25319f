"""Who listens to the changes of a store, and what there is to hear."""

from __future__ import annotations

import threading

from ragcache_integrations.retrievers.stores.changes import Change


class Ear:
    """Notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[Change] = []
        self.threads: list[int] = []

    def documents_changed(self, change: Change) -> None:
        self.heard.append(change)
        self.threads.append(threading.get_ident())

    def take(self) -> Change:
        (one,) = self.heard
        self.heard.clear()
        return one


def updated(*ids: str) -> Change:
    return Change(updated=set(ids))


def removed(*ids: str) -> Change:
    return Change(removed=set(ids))


UNKNOWN = Change(unknown=True)
