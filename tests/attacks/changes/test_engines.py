"""A query engine that changes after its first answer gives its new answer, and not the kept one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from llama_index.core import PromptTemplate as LlamaPromptTemplate
from llama_index.core import Settings, VectorStoreIndex
from llama_index.core.base.response.schema import Response
from llama_index.core.indices.query.query_transform.base import BaseQueryTransform
from llama_index.core.llms import CompletionResponse, CustomLLM, LLMMetadata
from llama_index.core.postprocessor import MetadataReplacementPostProcessor
from llama_index.core.query_engine import (
    CitationQueryEngine,
    RetrieverQueryEngine,
    TransformQueryEngine,
)
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.retrievers import BaseRetriever as LlamaRetriever
from llama_index.core.schema import (
    ImageNode,
    MediaResource,
    Node,
    NodeWithScore,
    QueryBundle,
    TextNode,
)
from llama_index.core.types import BaseOutputParser as LlamaOutputParser
from pydantic import AnyUrl, PrivateAttr

from ragcache_integrations import llama_index as llama
from tests.answers.traffic import llama_index_embeddings
from tests.attacks.changes.parts import QUESTION, VALUES, Case, shown
from tests.attacks.faces import check_refusal


class LlamaEcho(CustomLLM):
    style: str = "plain"
    anything: Any = None
    _hidden: Any = PrivateAttr(default="plain")

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata()

    def complete(self, prompt: str, formatted: bool = False, **more: Any) -> CompletionResponse:
        text = f"{prompt} {self.style} {shown(self.anything)} {self._hidden} {shown(more)}"
        return CompletionResponse(text=text)

    def stream_complete(self, prompt: str, formatted: bool = False, **more: Any) -> Any:
        yield self.complete(prompt, formatted, **more)


class Page(LlamaRetriever):
    def __init__(self, *nodes: Any) -> None:
        super().__init__()
        self._nodes = nodes or (TextNode(text="page", id_="1", metadata={"a": "x", "b": "y"}),)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [NodeWithScore(node=node, score=1.0) for node in self._nodes]


def llama_engine(model: Any = None, *nodes: Any, **settings: Any) -> RetrieverQueryEngine:
    synthesizer = get_response_synthesizer(llm=model or LlamaEcho(), **settings)
    return RetrieverQueryEngine(Page(*nodes), response_synthesizer=synthesizer)


LLAMA: dict[str, Case] = {}


def llama_case(function: Case) -> Case:
    LLAMA[function.__name__] = function
    return function


TEMPLATE = "response_synthesizer:text_qa_template"
REPLY = LlamaPromptTemplate("{context_str} Reply {query_str}")


@llama_case
def the_style_of_a_model() -> Iterator[Any]:
    model = LlamaEcho()
    yield llama_engine(model)
    model.style = "ornate"


@llama_case
def the_system_prompt_of_a_model() -> Iterator[Any]:
    model = LlamaEcho(system_prompt="Be kind.")
    yield llama_engine(model)
    model.system_prompt = "Be rude."


@llama_case
def a_private_attribute_of_a_model() -> Iterator[Any]:
    model = LlamaEcho()
    yield llama_engine(model)
    model._hidden = "ornate"


@llama_case
def the_function_that_writes_a_model_s_prompt() -> Iterator[Any]:
    model = LlamaEcho(completion_to_prompt=lambda text: f"one {text}")
    yield llama_engine(model)
    model.completion_to_prompt = lambda text: f"two {text}"


@llama_case
def prompts_that_are_updated() -> Iterator[Any]:
    engine = llama_engine()
    yield engine
    engine.update_prompts({TEMPLATE: REPLY})


@llama_case
def the_text_of_a_template() -> Iterator[Any]:
    template = LlamaPromptTemplate("{context_str} Answer {query_str}")
    engine = llama_engine(text_qa_template=template)
    yield engine
    used = engine._response_synthesizer._text_qa_template  # type: ignore[attr-defined]
    used.template = "{context_str} Reply {query_str}"


@llama_case
def what_a_template_is_filled_with() -> Iterator[Any]:
    template = LlamaPromptTemplate("{context_str} {lang} {query_str}", lang="en")
    engine = llama_engine(text_qa_template=template)
    yield engine
    engine._response_synthesizer._text_qa_template.kwargs["lang"] = "de"  # type: ignore[attr-defined]


@llama_case
def a_function_that_fills_a_template() -> Iterator[Any]:
    template = LlamaPromptTemplate(
        "{context_str} {lang} {query_str}", function_mappings={"lang": lambda **_: "en"}
    )
    engine = llama_engine(text_qa_template=template)
    yield engine
    used = engine._response_synthesizer._text_qa_template  # type: ignore[attr-defined]
    used.function_mappings["lang"] = lambda **_: "de"


class Marks(LlamaOutputParser):
    def __init__(self) -> None:
        self.mark = "!"

    def parse(self, output: str) -> Any:
        return output

    def format(self, query: str) -> str:
        return query + self.mark


@llama_case
def a_parser_of_a_template() -> Iterator[Any]:
    parser = Marks()
    template = LlamaPromptTemplate("{context_str} {query_str}", output_parser=parser)
    yield llama_engine(text_qa_template=template)
    parser.mark = "?"


@llama_case
def another_synthesizer() -> Iterator[Any]:
    engine = llama_engine()
    yield engine
    engine._response_synthesizer = get_response_synthesizer(llm=LlamaEcho(style="ornate"))


@llama_case
def another_model_of_the_synthesizer() -> Iterator[Any]:
    engine = llama_engine()
    yield engine
    engine._response_synthesizer._llm = LlamaEcho(style="ornate")


@llama_case
def metadata_that_a_model_is_not_shown() -> Iterator[Any]:
    node = TextNode(text="page", id_="1", metadata={"a": "x", "b": "y"})
    yield llama_engine(None, node)
    node.excluded_llm_metadata_keys.append("a")


@llama_case
def the_template_of_a_node() -> Iterator[Any]:
    node = TextNode(text="page", id_="1", metadata={"a": "x"})
    yield llama_engine(None, node)
    node.text_template = "{content}"


@llama_case
def the_template_of_a_node_s_metadata() -> Iterator[Any]:
    node = TextNode(text="page", id_="1", metadata={"a": "x"})
    yield llama_engine(None, node)
    node.metadata_template = "{key} is {value}"


@llama_case
def the_separator_of_a_node_s_metadata() -> Iterator[Any]:
    node = TextNode(text="page", id_="1", metadata={"a": "x", "b": "y"})
    yield llama_engine(None, node)
    node.metadata_separator = " / "


class TwoSteps(RetrieverQueryEngine):
    """Answers by its own synthesize, in all ways; LlamaIndex's class asks its synthesizer."""

    def _query(self, query_bundle: QueryBundle) -> Any:
        return self.synthesize(query_bundle, self.retrieve(query_bundle))

    async def _aquery(self, query_bundle: QueryBundle) -> Any:
        return self._query(query_bundle)

    async def asynthesize(
        self, query_bundle: Any, nodes: Any, additional_source_nodes: Any = None
    ) -> Any:
        return self.synthesize(query_bundle, nodes)


class ByImage(TwoSteps):
    def synthesize(self, query_bundle: Any, nodes: Any, additional_source_nodes: Any = None) -> Any:
        return Response(f"{nodes[0].node.image} {nodes[0].node.image_url}", source_nodes=nodes)


@llama_case
def the_image_of_a_node() -> Iterator[Any]:
    node = ImageNode(text="page", id_="1", image="b25l")
    yield ByImage(Page(node), response_synthesizer=get_response_synthesizer(llm=LlamaEcho()))
    node.image = "dHdv"


@llama_case
def the_address_of_a_node_s_image() -> Iterator[Any]:
    node = ImageNode(text="page", id_="1", image_url="http://127.0.0.1/one.png")
    yield ByImage(Page(node), response_synthesizer=get_response_synthesizer(llm=LlamaEcho()))
    node.image_url = "http://127.0.0.1/two.png"


@llama_case
def the_image_of_a_node_of_several_kinds() -> Iterator[Any]:
    class Shown(TwoSteps):
        def synthesize(
            self, query_bundle: Any, nodes: Any, additional_source_nodes: Any = None
        ) -> Any:
            return Response(str(nodes[0].node.image_resource.url), source_nodes=nodes)

    node = Node(id_="1", image_resource=MediaResource(url=AnyUrl("http://127.0.0.1/one.png")))
    yield Shown(Page(node), response_synthesizer=get_response_synthesizer(llm=LlamaEcho()))
    node.image_resource = MediaResource(url=AnyUrl("http://127.0.0.1/two.png"))


class Styled(TwoSteps):
    style: Any = "plain"

    def synthesize(self, query_bundle: Any, nodes: Any, additional_source_nodes: Any = None) -> Any:
        return Response(shown(self.style), source_nodes=nodes)


@llama_case
def an_attribute_of_an_engine() -> Iterator[Any]:
    engine = Styled(Page(), response_synthesizer=get_response_synthesizer(llm=LlamaEcho()))
    engine.style = {"a": ["one"]}
    yield engine
    engine.style["a"].append("two")


@llama_case
def an_attribute_of_an_engine_s_class() -> Iterator[Any]:
    class Mine(Styled):
        style = "one"

    yield Mine(Page(), response_synthesizer=get_response_synthesizer(llm=LlamaEcho()))
    Mine.style = "two"


@llama_case
def the_engine_s_own_postprocessors() -> Iterator[Any]:
    node = TextNode(text="page", id_="1", metadata={"a": "x", "b": "y"})
    engine = llama_engine(None, node)
    yield engine
    engine._node_postprocessors.append(MetadataReplacementPostProcessor(target_metadata_key="a"))


@llama_case
def a_setting_of_a_postprocessor() -> Iterator[Any]:
    node = TextNode(text="page", id_="1", metadata={"a": "x", "b": "y"})
    replace = MetadataReplacementPostProcessor(target_metadata_key="a")
    engine = llama_engine(None, node)
    engine._node_postprocessors.append(replace)
    yield engine
    replace.target_metadata_key = "b"


class Politely(BaseQueryTransform):
    def __init__(self) -> None:
        self.word = "please"

    def _get_prompts(self) -> dict[str, Any]:
        return {}

    def _update_prompts(self, prompts: Any) -> None:
        pass

    def _run(self, query_bundle: QueryBundle, metadata: Any) -> QueryBundle:
        return QueryBundle(f"{query_bundle.query_str} {self.word}")


@llama_case
def a_transformation_of_the_question() -> Iterator[Any]:
    transform = Politely()
    yield TransformQueryEngine(llama_engine(), transform)
    transform.word = "now"


@llama_case
def the_template_of_citations() -> Iterator[Any]:
    index = VectorStoreIndex([TextNode(text="page", id_="1")], embed_model=llama_index_embeddings())
    engine = CitationQueryEngine.from_args(index, llm=LlamaEcho())
    yield engine
    engine.update_prompts({TEMPLATE: REPLY})


@llama_case
def the_model_of_all_of_llama_index() -> Iterator[Any]:
    class ByDefault(TwoSteps):
        def synthesize(
            self, query_bundle: Any, nodes: Any, additional_source_nodes: Any = None
        ) -> Any:
            return Response(Settings.llm.complete("x").text, source_nodes=nodes)

    engine = ByDefault(Page(), response_synthesizer=get_response_synthesizer(llm=LlamaEcho()))
    Settings.llm = LlamaEcho()
    yield engine
    Settings.llm = LlamaEcho(style="ornate")


def of_llama_value(name: str) -> Case:
    def change() -> Iterator[Any]:
        value, do = VALUES[name]()
        yield llama_engine(LlamaEcho(anything=value))
        do()

    return change


LLAMA |= {f"a model's setting, {name}": of_llama_value(name) for name in ("deque", "numpy array")}
"""Other values are compared by the code that compares those of LangChain's models."""


def query(engine: Any, later: bool) -> str:
    return str(asyncio.run(engine.aquery(QUESTION)) if later else engine.query(QUESTION))


LATER = ("the_style_of_a_model", "the_template_of_a_node", "an_attribute_of_an_engine")


@pytest.mark.parametrize(
    ("name", "later"), [*((name, False) for name in LLAMA), *((name, True) for name in LATER)]
)
def test_a_change_of_a_query_engine_ends_its_answers(name: str, later: bool) -> None:
    before = Settings._llm
    changing = LLAMA[name]()
    engine = next(changing)
    try:
        cached = llama.AnswerCache(engine, embed_model=llama_index_embeddings(), tolerance=0)
        first = query(cached, later)
        next(changing, None)
        served, right = query(cached, later), query(engine, later)
    except ValueError as error:
        check_refusal(error)
        return
    finally:
        Settings._llm = before
    assert right != first, "the change changes the answer"
    assert served == right


@pytest.mark.parametrize("later", [False, True])
def test_a_query_engine_that_does_not_change_is_served(later: bool) -> None:
    engine = llama_engine(LlamaEcho(anything={"a": ["one"]}))
    cached = llama.AnswerCache(engine, embed_model=llama_index_embeddings(), tolerance=0)
    first = query(cached, later)
    assert query(cached, later) == query(cached, not later) == first
    assert cached.stats().hits == 2
