"""Tenants, and filters that let one of them see its own documents, for the state machines."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Literal

__all__ = [
    "FILTERS",
    "QUESTIONS",
    "STATE",
    "TENANT",
    "TENANTS",
    "Filters",
    "Kind",
    "by_context",
    "fixed",
    "tenant_of",
]

TENANTS = ("ann", "bob")
QUESTIONS = ("what is it", "what is it~1", "something else")

Kind = Literal["none", "data", "context", "state", "object"]
FILTERS: tuple[Kind, ...] = ("none", "data", "context", "state", "object")

TENANT: ContextVar[str] = ContextVar("tenant_of_a_machine", default="ann")


class State:
    """What a function may look at, besides the document."""

    tenant = "ann"


STATE = State()


def metadata_of(document: Any) -> Any:
    """The metadata, which some stores give to a filter in place of the document."""
    return getattr(document, "metadata", document)


def by_context(document: Any) -> bool:
    return bool(metadata_of(document)["tenant"] == TENANT.get())


def by_state(document: Any) -> bool:
    return bool(metadata_of(document)["tenant"] == STATE.tenant)


def fixed(document: Any) -> bool:
    """The one filter whose meaning does not change."""
    return bool(metadata_of(document)["tenant"] == "ann")


class OfTenant:
    """Decides by an attribute that may be changed."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant

    def __call__(self, document: Any) -> bool:
        return bool(metadata_of(document)["tenant"] == self.tenant)


class Filters:
    """One filter of each kind, whose meaning can be changed."""

    def __init__(self) -> None:
        TENANT.set("ann")
        STATE.tenant = "ann"
        self.data = {"tenant": "ann"}
        self.object = OfTenant("ann")

    def change(self, kind: Kind, tenant: str) -> None:
        if kind == "data":
            self.data["tenant"] = tenant
        elif kind == "context":
            TENANT.set(tenant)
        elif kind == "state":
            STATE.tenant = tenant
        elif kind == "object":
            self.object.tenant = tenant

    def of(self, kind: Kind) -> Any:
        """The filter itself."""
        return {
            "none": None,
            "data": self.data,
            "context": by_context,
            "state": by_state,
            "object": self.object,
        }[kind]


def tenant_of(filter_: Any) -> str | None:
    """Whose documents a filter lets through now; ``None`` for everybody's."""
    if filter_ is None:
        return None
    if isinstance(filter_, dict):
        return str(filter_["tenant"])
    return next(tenant for tenant in TENANTS if filter_({"tenant": tenant}))
