"""What nobody hears of is not told, and everything is told where somebody listens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import llama_index.core.instrumentation as instrument
import pytest
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.indices.vector_store import VectorStoreIndex
from llama_index.core.instrumentation.span import BaseSpan, active_span_id
from llama_index.core.instrumentation.span_handlers import BaseSpanHandler, NullSpanHandler
from llama_index.core.schema import TextNode

from ragcache_integrations.llama_index import ApproximateCacheRetriever
from ragcache_integrations.prompts.llama_index import watch_retrievers

SPANS: list[str] = []


class Spans(BaseSpanHandler[BaseSpan]):
    def span_enter(self, id_: str, *args: Any, **kwargs: Any) -> None:
        SPANS.append(id_)

    def new_span(self, *args: Any, **kwargs: Any) -> None:
        return None

    def prepare_to_exit_span(self, *args: Any, **kwargs: Any) -> None:
        return None

    def prepare_to_drop_span(self, *args: Any, **kwargs: Any) -> None:
        return None


@pytest.fixture
def listening() -> Iterator[None]:
    root = instrument.get_dispatcher()  # type: ignore[attr-defined]  # re-exported untyped
    handler = Spans()
    SPANS.clear()
    root.add_span_handler(handler)
    yield
    root.span_handlers.remove(handler)


def index() -> VectorStoreIndex:
    return VectorStoreIndex([TextNode(text="a", id_="a")], embed_model=MockEmbedding(3))


async def ask(retriever: ApproximateCacheRetriever, *, asynchronous: bool) -> list[str]:
    nodes = retriever.retrieve("q") if not asynchronous else await retriever.aretrieve("q")
    return [node.node_id for node in nodes]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.usefixtures("listening")
async def test_spans_of_the_search_are_told(asynchronous: bool) -> None:
    retriever = ApproximateCacheRetriever.from_index(index())
    assert await ask(retriever, asynchronous=asynchronous) == ["a"]
    # This store's coroutine would block: it is searched in a thread.
    assert any(span.startswith("VectorIndexRetriever._retrieve-") for span in SPANS)


def test_without_listeners_the_search_has_no_span_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = instrument.get_dispatcher()  # type: ignore[attr-defined]  # re-exported untyped
    # Other tests may have left theirs.
    monkeypatch.setattr(root, "span_handlers", [NullSpanHandler()])
    monkeypatch.setattr(root, "event_handlers", [])
    watch_retrievers()  # our own handlers are no listeners
    seen: list[str | None] = []
    searched = index()
    store: Any = searched.vector_store
    query = store.query

    def watched(*args: Any, **kwargs: Any) -> Any:
        seen.append(active_span_id.get())
        return query(*args, **kwargs)

    vars(store)["query"] = watched
    retriever = ApproximateCacheRetriever.from_index(searched)
    assert [node.node_id for node in retriever.retrieve("q")] == ["a"]
    assert [str(span).split("-")[0] for span in seen] == ["ApproximateCacheRetriever._retrieve"]
