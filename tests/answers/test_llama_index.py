"""Cached answers around LlamaIndex query engines."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Iterator
from typing import Any, ClassVar

import pytest
from llama_index.core import PromptTemplate, VectorStoreIndex
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.response.schema import (
    AsyncStreamingResponse,
    Response,
    StreamingResponse,
)
from llama_index.core.llms import (
    CompletionResponse,
    CompletionResponseGen,
    CustomLLM,
    LLMMetadata,
)
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.query_engine import CustomQueryEngine, RetrieverQueryEngine
from llama_index.core.response_synthesizers import BaseSynthesizer
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from pydantic import BaseModel, PrivateAttr

from ragcache_integrations.answers import AnswerTrace
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.llama_index import (
    ANSWER_CACHE_METADATA,
    AnswerCache,
    ApproximateCacheRetriever,
    MiniLMEmbeddings,
)
from tests.answers.traffic import UNREAD, llama_index_embeddings
from tests.support.embeddings import LlamaIndexEmbeddings
from tests.support.waiting import wait_until

TEXTS = ["rome is a city", "oslo is a town", "kyiv is a place", "bonn is a seat"]


class Model(CustomLLM):
    """Counts its answers."""

    style: str = "plain"
    _count: int = PrivateAttr(default=0)

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata()

    @property
    def count(self) -> int:
        return self._count

    def complete(self, prompt: str, formatted: bool = False, **_: Any) -> CompletionResponse:
        self._count += 1
        return CompletionResponse(text=f"answer {self._count}")

    def stream_complete(
        self, prompt: str, formatted: bool = False, **_: Any
    ) -> CompletionResponseGen:
        self._count += 1
        text = ""
        for piece in ("answer ", str(self._count)):
            text += piece
            yield CompletionResponse(text=text, delta=piece)


class Told(CustomLLM):
    """Tells how each of its answers ended, as providers do."""

    answers: list[tuple[str, str]]
    _given: Iterator[tuple[str, str]] = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        self._given = iter(self.answers)

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata()

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **_: Any) -> CompletionResponse:
        text, reason = next(self._given)
        return CompletionResponse(text=text, raw={"choices": [{"finish_reason": reason}]})

    @llm_completion_callback()
    def stream_complete(
        self, prompt: str, formatted: bool = False, **_: Any
    ) -> CompletionResponseGen:
        text, reason = next(self._given)
        yield CompletionResponse(text=text, delta=text)
        yield CompletionResponse(text=text, delta="", raw={"choices": [{"finish_reason": reason}]})
        yield CompletionResponse(text=text, delta="", raw={"choices": []})


BAD = [("first,", "length"), ("", "stop"), (" ", "content_filter"), ("I", "abort")]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("bad", BAD)
async def test_what_is_no_answer_is_asked_again(
    index: VectorStoreIndex, bad: tuple[str, str], streaming: bool, asynchronous: bool
) -> None:
    told = Told(answers=[bad, ("five", "stop"), ("never", "stop")])
    cached = AnswerCache(engine_of(index, told, streaming=streaming))

    async def ask() -> str:
        response = await cached.aquery("rome") if asynchronous else cached.query("rome")
        if isinstance(response, AsyncStreamingResponse):
            return str(await response.get_response())
        return str(response)

    await ask()
    assert (cached.stats().entries, cached.stats().unkept) == (0, 1)
    assert [await ask() for _ in range(2)] == ["five", "five"]
    assert cached.stats().hits == 1


def test_an_empty_response_is_not_kept(index: VectorStoreIndex, model: Model) -> None:
    engine = engine_of(index, model)
    cached = AnswerCache(engine, tolerance=0)
    index.delete_nodes([text.split()[0] for text in TEXTS])
    assert [str(cached.query("rome")) for _ in range(2)] == ["Empty Response"] * 2
    assert (cached.stats().entries, cached.stats().unkept) == (0, 2)


def test_keep_decides_instead(index: VectorStoreIndex) -> None:
    told = Told(answers=[("first,", "length"), ("five", "stop")])
    cached = AnswerCache(engine_of(index, told), keep=lambda response: "," in str(response))
    assert [str(cached.query("rome")) for _ in range(2)] == ["first,", "first,"]


async def test_keep_gets_a_copy_with_metadata(index: VectorStoreIndex, model: Model) -> None:
    class Bare(RetrieverQueryEngine):
        """An engine whose responses have no metadata."""

        def synthesize(self, *_: Any, **__: Any) -> Any:
            return Response("five")

        async def asynthesize(self, *_: Any, **__: Any) -> Any:
            return Response("five")

    def keep(response: Any) -> bool:
        response.response = "changed"
        return response.metadata.get("draft") is None

    cached = AnswerCache(Bare.from_args(index.as_retriever(), llm=model), keep=keep, tolerance=0)
    answers = [str(cached.query("rome")), str(await cached.aquery("rome"))]
    assert answers == ["five", "five"]
    assert (cached.stats().hits, cached.stats().insertions) == (1, 1)


async def test_a_check_in_the_background_learns_nothing_of_what_is_no_answer(
    index: VectorStoreIndex,
) -> None:
    told = Told(answers=[("five", "stop"), ("f", "length"), ("f", "length")])
    cached = AnswerCache(engine_of(index, told), start_tolerance=0.7)
    cached.query("rome is it nice")
    assert str(cached.query("rome is it pretty")) == "five"
    wait_until(lambda: cached.stats().failed_checks == 1)
    await cached.aquery("rome is it lovely")
    await asyncio.to_thread(wait_until, lambda: cached.stats().failed_checks == 2)
    assert cached.stats().wrong == 0


class Growing(BaseSynthesizer):
    """Streams its whole answer so far, again and again, as structured output comes."""

    def _get_prompts(self) -> dict[str, Any]:
        return {}

    def _update_prompts(self, prompts: dict[str, Any]) -> None: ...

    def get_response(self, query_str: str, text_chunks: Any, **_: Any) -> Any:
        return (piece for piece in ([1], [1, 2]))

    async def aget_response(self, query_str: str, text_chunks: Any, **_: Any) -> Any:
        async def pieces() -> AsyncIterator[Any]:
            for piece in ([1], [1, 2]):
                yield piece

        return pieces()


async def test_a_stream_of_something_else_than_text_is_not_kept(
    index: VectorStoreIndex, model: Model
) -> None:
    engine = engine_of(index, model, response_synthesizer=Growing(llm=model, streaming=True))
    cached = AnswerCache(engine)
    response: Any = cached.query("rome")
    assert list(response.response_gen) == [[1], [1, 2]]
    response = await cached.aquery("rome")
    assert [piece async for piece in response.response_gen] == [[1], [1, 2]]
    assert (cached.stats().entries, cached.stats().unkept) == (0, 2)


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def index() -> VectorStoreIndex:
    nodes = [TextNode(text=text, id_=text.split()[0]) for text in TEXTS]
    return VectorStoreIndex(nodes, embed_model=llama_index_embeddings())


def engine_of(index: VectorStoreIndex, model: CustomLLM, **settings: Any) -> RetrieverQueryEngine:
    retriever = ApproximateCacheRetriever.from_index(index, k=1)
    return RetrieverQueryEngine.from_args(retriever, llm=model, **settings)


@pytest.fixture
def engine(index: VectorStoreIndex, model: Model) -> RetrieverQueryEngine:
    return engine_of(index, model)


@pytest.fixture
def cached(engine: RetrieverQueryEngine) -> AnswerCache:
    return AnswerCache(engine, tolerance=0.6)


def trace_of(response: Any) -> AnswerTrace:
    trace = response.metadata[ANSWER_CACHE_METADATA]
    assert isinstance(trace, AnswerTrace)
    return trace


async def test_the_same_words_and_near_ones_get_the_answer_again(
    cached: AnswerCache, model: Model
) -> None:
    first = cached.query("rome is it nice")
    assert (str(first), trace_of(first).hit) == ("answer 1", False)
    again = await cached.aquery("rome is it nice")
    assert (str(again), trace_of(again).hit) == ("answer 1", True)
    near = cached.query("rome is it pretty")
    assert str(near) == "answer 1"
    assert trace_of(near).question == "rome is it nice"
    assert [node.node.node_id for node in near.source_nodes] == ["rome"]
    assert near.metadata is not None
    assert "rome" in near.metadata
    assert str(await cached.aquery("oslo is it nice")) == "answer 2"
    assert str(cached.query("rome is it not nice")) == "answer 3"
    assert model.count == 3


def test_a_changed_node_ends_its_answers(cached: AnswerCache, index: VectorStoreIndex) -> None:
    assert str(cached.query("rome is it nice")) == "answer 1"
    assert str(cached.query("oslo is it nice")) == "answer 2"
    index.delete_nodes(["rome"])
    index.insert_nodes([TextNode(text="rome is a large city", id_="rome")])
    assert str(cached.query("rome is it nice")) == "answer 3"
    assert str(cached.query("oslo is it nice")) == "answer 2"


def test_a_setting_that_changes_ends_all_answers(cached: AnswerCache, model: Model) -> None:
    assert str(cached.query("rome is it nice")) == "answer 1"
    model.style = "ornate"
    assert str(cached.query("rome is it nice")) == "answer 2"
    assert str(cached.query("rome is it nice")) == "answer 2"


def test_strings_to_embed_are_part_of_the_question(cached: AnswerCache) -> None:
    assert str(cached.query("rome is it nice")) == "answer 1"
    bundle = QueryBundle("rome is it nice", custom_embedding_strs=["rome in 1950"])
    assert str(cached.query(bundle)) == "answer 2"
    assert str(cached.query("rome is it nice")) == "answer 1"


async def test_streams_are_kept_when_they_have_ended(index: VectorStoreIndex, model: Model) -> None:
    cached = AnswerCache(engine_of(index, model, streaming=True), tolerance=0.6)
    left = cached.query("rome is it nice")
    assert isinstance(left, StreamingResponse)
    assert next(iter(left.response_gen)) == "answer "
    assert cached.stats().entries == 0
    whole = cached.query("rome is it nice")
    assert str(whole) == "answer 2"
    again = cached.query("rome is it pretty")
    assert isinstance(again, StreamingResponse)
    assert list(again.response_gen) == ["answer 2"]
    awaited = await cached.aquery("rome is it nice")
    assert isinstance(awaited, AsyncStreamingResponse)
    assert [piece async for piece in awaited.async_response_gen()] == ["answer 2"]
    assert trace_of(awaited).hit


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_hit_is_checked_in_the_background_where_nothing_is_proven_yet(
    engine: RetrieverQueryEngine, model: Model, asynchronous: bool
) -> None:
    judged: list[dict[str, str]] = []

    def judge(pair: dict[str, str]) -> bool:
        judged.append(pair)
        return False

    cached = AnswerCache(engine, start_tolerance=0.6, judge=judge)
    cached.query("rome is it nice")
    ask = await cached.aquery("rome is it pretty") if asynchronous else None
    assert str(ask or cached.query("rome is it pretty")) == "answer 1"
    await asyncio.to_thread(wait_until, lambda: cached.stats().wrong == 1)
    assert (judged[0]["answer"], judged[0]["other_answer"]) == ("answer 2", "answer 1")
    assert str(cached.query("rome is it pretty")) == "answer 3"
    assert model.count == 3


async def test_explanations_forgetting_and_statistics(cached: AnswerCache) -> None:
    cached.query("rome is it nice")
    assert cached.explain("rome is it pretty").hit
    assert "differs in numbers" in (await cached.aexplain("rome is it nice 1950")).reason
    assert cached.forget(["oslo"]) == 0
    assert cached.forget(["rome"]) == 1
    cached.query("rome is it nice")
    cached.clear()
    assert (cached.stats().entries, cached.stats().insertions) == (0, 2)
    assert [node.node.node_id for node in cached.retrieve(QueryBundle("oslo"))] == ["oslo"]


def test_a_copy_has_the_settings_and_nothing_else(cached: AnswerCache) -> None:
    cached.query("rome is it nice")
    clone = copy.deepcopy(cached)
    assert clone.stats().entries == 0
    assert clone.stats().tolerance == 0.6


class OneStep(CustomQueryEngine):
    def custom_query(self, query_str: str) -> str:
        return query_str


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        (OneStep(), "in two steps, as RetrieverQueryEngine does, but OneStep has no retrieve"),
        ("engine", "query_engine must be a BaseQueryEngine, got str"),
    ],
)
def test_an_engine_that_cannot_be_given_nodes_is_refused(
    engine: BaseQueryEngine, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        AnswerCache(engine)


class Asking(BaseRetriever):
    """Searches by words, or asks another retriever."""

    def __init__(self, inner: BaseRetriever | None = None) -> None:
        super().__init__()
        self.inner = inner

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        if self.inner is not None:
            return self.inner.retrieve(query_bundle)
        return [NodeWithScore(node=TextNode(text="rome", id_="1"))]


@pytest.mark.parametrize("knob", ["tolerance", "start_tolerance"])
def test_a_tolerance_between_questions_that_nothing_embeds_is_refused(
    knob: str, index: VectorStoreIndex, model: Model
) -> None:
    settings: Any = {"tolerance": "auto", knob: 0.7}
    engine = RetrieverQueryEngine.from_args(Asking(), llm=model)
    with pytest.raises(ConfigurationError, match=rf"{knob}=0.7 .* pass embed_model=, or {knob}=0"):
        AnswerCache(engine, **settings)
    AnswerCache(engine)
    AnswerCache(engine, tolerance=0)
    AnswerCache(engine, embed_model=llama_index_embeddings(), **settings)
    # The retriever within notes the question's embedding, which is then known here, too.
    within = RetrieverQueryEngine.from_args(Asking(index.as_retriever()), llm=model)
    cached = AnswerCache(within, tolerance=0.6)
    answers = [str(cached.query(text)) for text in ("rome is it nice", "rome is it pretty")]
    assert answers[0] == answers[1]


def test_a_tag_without_a_cache_is_refused(engine: RetrieverQueryEngine) -> None:
    with pytest.raises(ConfigurationError, match=r"tag='v1' is for answers that are shared"):
        AnswerCache(engine, tag="v1")


def test_a_misspelt_knob(engine: RetrieverQueryEngine) -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'tolerance'"):
        AnswerCache(engine, tolerence=0.3)  # type: ignore[call-arg] # the point


@pytest.mark.parametrize(
    "settings", [{"embed_model": "local"}, {"judge": "model"}, {"same_answer": "exact"}]
)
def test_an_argument_of_the_wrong_type(
    engine: RetrieverQueryEngine, settings: dict[str, Any]
) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(settings))} must be a"):
        AnswerCache(engine, **settings)


def test_the_prompts_are_the_wrapped_engines(
    cached: AnswerCache, engine: RetrieverQueryEngine
) -> None:
    assert cached.get_prompts() == engine.get_prompts() != {}
    assert str(cached.query("rome is it nice")) == "answer 1"
    prompt = PromptTemplate("{context_str} {query_str}")
    cached.update_prompts({"response_synthesizer:text_qa_template": prompt})
    assert engine.get_prompts()["response_synthesizer:text_qa_template"] == prompt
    assert str(cached.query("rome is it nice")) == "answer 2"


def test_another_embedding_model_than_the_retrievers(index: VectorStoreIndex, model: Model) -> None:
    def blind(_: str) -> list[float]:
        return [1.0, 0.0]

    cached = AnswerCache(
        index.as_query_engine(llm=model, similarity_top_k=1),
        embed_model=LlamaIndexEmbeddings(blind),
        tolerance=0.01,
    )
    assert str(cached.query("rome is it nice")) == "answer 1"
    assert str(cached.query("rome is it pretty")) == "answer 1"


class Own(BaseSynthesizer):
    """Somebody's own synthesizer, of objects."""

    class Town(BaseModel):
        names: list[str]

    def __init__(self, llm: Model) -> None:
        super().__init__(llm=llm, output_cls=self.Town)
        self.suffix = ""

    def _get_prompts(self) -> dict[str, Any]:
        return {}

    def _update_prompts(self, prompts: dict[str, Any]) -> None: ...

    def get_response(self, query_str: str, text_chunks: Any, **_: Any) -> Any:
        return self.Town(names=[f"{self._llm.complete(query_str)}{self.suffix}"])

    async def aget_response(self, query_str: str, text_chunks: Any, **_: Any) -> Any:
        return self.get_response(query_str, text_chunks)


def test_an_own_synthesizer_is_watched_and_its_objects_are_nobody_elses(
    index: VectorStoreIndex, model: Model
) -> None:
    own = Own(model)
    cached = AnswerCache(engine_of(index, model, response_synthesizer=own), tolerance=0)
    for _ in range(3):
        response: Any = cached.query("rome is it nice")
        assert response.response.names == ["answer 1"]
        response.response.names.append("changed")
    own.suffix = "!"
    response = cached.query("rome is it nice")
    assert response.response.names == ["answer 2!"]


def test_a_judges_no_is_no(engine: RetrieverQueryEngine) -> None:
    cached = AnswerCache(engine, start_tolerance=0.6, judge=lambda _: CompletionResponse(text="No"))
    cached.query("rome is it nice")
    cached.query("rome is it pretty")
    wait_until(lambda: cached.stats().wrong == 1)


class Writer(CustomLLM):
    """A model of an application, with code of its own."""

    sign: ClassVar[str] = "."
    _count: int = PrivateAttr(default=0)

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata()

    def complete(self, prompt: str, formatted: bool = False, **_: Any) -> CompletionResponse:
        self._count += 1
        return CompletionResponse(text=written(prompt.split(maxsplit=1)[0]) + self.sign)

    def stream_complete(
        self, prompt: str, formatted: bool = False, **_: Any
    ) -> CompletionResponseGen:
        text = self.complete(prompt).text
        yield CompletionResponse(text=text, delta=text)


STYLE = {"greeting": "Hello"}


def written(word: str) -> str:
    return f"{STYLE['greeting']} {word}"


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("streaming", [False, True])
async def test_what_a_models_own_code_names_is_noticed(
    index: VectorStoreIndex,
    streaming: bool,
    asynchronous: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = {"word": "rome"}
    prompt = PromptTemplate("{word}", function_mappings={"word": lambda **_: words["word"]})
    model = Writer()
    engine = engine_of(index, model, streaming=streaming, text_qa_template=prompt)
    cached = AnswerCache(engine)

    async def ask() -> str:
        response = await cached.aquery("rome") if asynchronous else cached.query("rome")
        if isinstance(response, AsyncStreamingResponse):
            return str(await response.get_response())
        return str(response)

    assert [await ask() for _ in range(2)] == ["Hello rome."] * 2
    monkeypatch.setitem(STYLE, "greeting", "Hi")
    assert [await ask() for _ in range(2)] == ["Hi rome."] * 2
    words["word"] = "oslo"
    assert [await ask() for _ in range(2)] == ["Hi oslo."] * 2
    monkeypatch.setattr(Writer, "sign", "!")
    assert [await ask() for _ in range(2)] == ["Hi oslo!"] * 2
    assert (model._count, cached.stats().hits) == (4, 4)


@pytest.mark.parametrize(("text", "other"), UNREAD)
async def test_what_the_embedding_model_cannot_read_is_near_to_nothing(
    text: str, other: str
) -> None:
    index = VectorStoreIndex([TextNode(text="the whole FAQ")], embed_model=MiniLMEmbeddings())
    cached = AnswerCache(index.as_query_engine(llm=Model()), tolerance=0.5)
    first, second = str(cached.query(text)), str(await cached.aquery(other))
    assert (first, second) == ("answer 1", "answer 2")
    assert (str(await cached.aquery(text)), str(cached.query(other))) == (first, second)
