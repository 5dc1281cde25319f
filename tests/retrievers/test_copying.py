from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from ragcache_integrations.retrievers.copying import copy_model


class Document(BaseModel):
    text: str
    metadata: dict[str, Any]
    odd: Any = None


def test_changing_a_copy_leaves_the_document_alone() -> None:
    odd = object()
    document = Document(
        text="t", metadata={"tags": ["a"], "more": {"deep": [1]}, "o": odd}, odd=odd
    )
    copy = copy_model(document, text="other")
    assert copy.text == "other"
    assert copy.metadata == document.metadata
    assert copy.odd is odd
    assert copy.metadata["o"] is odd
    copy.metadata["tags"].append("b")
    copy.metadata["more"]["deep"].append(2)
    copy.metadata["new"] = 1
    assert document.text == "t"
    assert document.metadata == {"tags": ["a"], "more": {"deep": [1]}, "o": odd}
