from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, PrivateAttr

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


class Odd(Document):
    model_config = ConfigDict(extra="allow")

    _secret: list[int] = PrivateAttr(default_factory=list)


def test_models_with_more_than_fields_are_copied_as_pydantic_does() -> None:
    document = Odd(text="t", metadata={}, another="a")
    document._secret.append(1)
    for copy in (copy_model(document), copy_model(document, text="other", another="b")):
        assert copy._secret == [1]
        assert copy.model_fields_set >= {"text", "metadata", "another"}
    assert copy.model_extra == {"another": "b"}
    assert document.model_extra == {"another": "a"}
