"""Synthesis for LangChain: adapters, see :mod:`ragcache_integrations.adaptive`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from langchain_core.documents import Document
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.utils import AddableDict
from pydantic import Field, PrivateAttr
from typing_extensions import override

from ragcache_integrations.adaptive import (
    Synthesis,
    Synthesised,
    SynthesisPrompts,
    SynthesisSettings,
    astream_synthesis,
    asynthesise,
    stream_synthesis,
    synthesise,
)
from ragcache_integrations.adaptive.synthesis import DEFAULT_PROMPTS
from ragcache_integrations.chains.langchain import (
    LangChainAsker,
    LangChainModel,
    Output,
    StreamedRunnable,
    Template,
    marked_documents,
)
from ragcache_integrations.core.checks import check_choice, check_type
from ragcache_integrations.core.flows import Call, Each, Flow
from ragcache_integrations.core.knobs import settings_of
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.sharing import Identity

from .knobs import MapReduceKnobs, SynthesisKnobs

__all__ = [
    "MapReduceSynthesis",
    "MapRerankSynthesis",
    "StuffSynthesis",
    "SynthesisRunnable",
    "synthesis_chain",
]

Values = Output


DOCUMENTS_KEYS = ("input_documents", "context")


class SynthesisRunnable(SynthesisKnobs, StreamedRunnable[Values]):
    """Answers a question from documents.

    The input is a dict of ``input_documents`` or ``context``, a list of ``Document`` objects or
    strings with the most relevant first, and ``question``. The output is the input,
    ``output_text`` (the answer), ``citations`` (the documents that it comes from) and ``synthesis``
    (:class:`~ragcache_integrations.adaptive.Synthesised`: calls, usage, confidence, every step).
    Streams have them in this order, the answer in pieces.

    In callbacks the model's runs are children of this chain's run. Arguments of a call, such as
    ``temperature``, are passed to the model. The knobs are those of
    :class:`~ragcache_integrations.chains.synthesis.knobs.SynthesisKnobs`.

    Attributes:
        llm: Any chat model or LLM. ``ChatRAGCache`` and ``RAGCacheLLM`` get marked documents in
            their prompts.
        prompts: The prompts of the synthesis.
        document_prompt: Formats a document for the prompt.
        return_intermediate_steps: Whether to add ``intermediate_steps`` to the output: the
            summaries of ``map_reduce``; for ``map_rerank`` a dict of ``answer`` and ``score``
            for each document.

    Raises:
        ConfigurationError: An argument is unknown, missing or out of range.
    """

    method: ClassVar[Synthesis]
    _written = frozenset({"output_text", "citations", "synthesis", "intermediate_steps"})

    llm: Runnable[Any, Any]
    prompts: SynthesisPrompts = DEFAULT_PROMPTS
    document_prompt: Template = PromptTemplate.from_template("{page_content}")
    return_intermediate_steps: bool = Field(default=False, strict=True)

    _model: LangChainModel = PrivateAttr()
    _synthesis_settings: SynthesisSettings = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Read the properties of the model, and the settings."""
        super().model_post_init(context)
        self._model = self.shared_state.core(
            ("model", Identity(self.llm)), lambda: LangChainModel(self.llm)
        )
        self._synthesis_settings = settings_of(SynthesisSettings, self)

    @override
    def _flow(
        self, value: Values, config: RunnableConfig, call: dict[str, Any], *, streamed: bool
    ) -> Flow:
        question = _Question(self, value)
        arguments = question.arguments(config, call)
        yield self._first_piece(value)
        if streamed:
            yield Each(
                partial(stream_synthesis, *arguments),
                partial(astream_synthesis, *arguments),
                question.piece,
            )
        else:
            result = yield Call(partial(synthesise, *arguments), partial(asynthesise, *arguments))
            yield from map(question.piece, (result.text, result))


class StuffSynthesis(SynthesisRunnable):
    """Puts all documents into one prompt: one call of the model. See :class:`SynthesisRunnable`."""

    method: ClassVar[Synthesis] = "stuff"


class MapReduceSynthesis(MapReduceKnobs, SynthesisRunnable):
    """Summarises each document separately and answers from the summaries.

    It takes a call for each document, all at the same time, and one more. See
    :class:`SynthesisRunnable`; there is also ``intermediate_length``, the most words of each
    summary.
    """

    method: ClassVar[Synthesis] = "map_reduce"


class MapRerankSynthesis(SynthesisRunnable):
    """Answers from each document separately and takes the answer with the highest confidence.

    It takes a call for each document, all at the same time. Confidence comes from the
    log-probabilities of the answer's tokens; without them, the model rates its answer. Answers that
    say "not in the document" come last. A stream has the answer in one piece. See
    :class:`SynthesisRunnable`.
    """

    method: ClassVar[Synthesis] = "map_rerank"


_CLASSES: dict[str, type[SynthesisRunnable]] = {
    kind.method: kind for kind in (StuffSynthesis, MapReduceSynthesis, MapRerankSynthesis)
}


def synthesis_chain(
    llm: Runnable[Any, Any], chain_type: Synthesis = "stuff", **knobs: Any
) -> SynthesisRunnable:
    """Make a chain that answers questions from documents, like ``load_qa_chain``.

    Input and output have the same keys: ``{"input_documents": [...], "question": ...}`` in,
    ``output_text`` and optionally ``intermediate_steps`` out, with citations and more.

    Args:
        llm: Any chat model or LLM.
        chain_type: ``stuff``, ``map_reduce`` or ``map_rerank``.
        **knobs: See :class:`SynthesisRunnable`; for ``map_reduce`` also ``intermediate_length``.

    Raises:
        ConfigurationError: The type or a knob is unknown, or a knob out of range.
    """
    return _CLASSES[check_choice("chain_type", chain_type, list(_CLASSES))](llm=llm, **knobs)


class _Question:
    """An input of a chain, for the framework-free synthesis."""

    def __init__(self, chain: SynthesisRunnable, values: Any) -> None:
        check_type("the input", values, Mapping, "a dict")
        key = next((key for key in DOCUMENTS_KEYS if key in values), None)
        if key is None or "question" not in values:
            raise ConfigurationError(
                f"the input must have {' or '.join(DOCUMENTS_KEYS)}, and question, "
                f"got {', '.join(map(str, values)) or 'nothing'}"
            )
        self._chain = chain
        self._values = values
        self._documents = _documents(key, values[key])

    def arguments(self, config: RunnableConfig, call: dict[str, Any]) -> tuple[Any, ...]:
        """Arguments of the synthesis functions."""
        chain = self._chain
        chunks = marked_documents(self._documents, chain.document_prompt)
        return (
            LangChainAsker(chain._model, config, call),  # noqa: SLF001 - a part of it
            self._values["question"],
            chunks,
            chain._config(chain.method, len(chunks)),  # noqa: SLF001 - a part of it
            chain._synthesis_settings,  # noqa: SLF001 - a part of it
        )

    def piece(self, piece: str | Synthesised) -> Values:
        """A piece of the output: of the answer, or after it."""
        if isinstance(piece, str):
            return AddableDict(output_text=piece)
        cited = [self._documents[citation.index] for citation in piece.citations]
        rest = AddableDict(citations=cited, synthesis=piece)
        if self._chain.return_intermediate_steps:
            rest["intermediate_steps"] = _intermediate_steps(piece)
        return rest


def _documents(key: str, value: Sequence[Document | str]) -> list[Document]:
    check_type(key, value, list | tuple, "a list of documents")
    documents = [Document(item) if isinstance(item, str) else item for item in value]
    for document in documents:
        if not isinstance(document, Document):
            msg = f"{key} must hold documents or strings, got {type(document).__name__}"
            raise ConfigurationError(msg)
    return documents


def _intermediate_steps(result: Synthesised) -> list[Any]:
    if result.method == "map_rerank":
        # A model that turned out to return no log-probabilities was called twice.
        last = {step.chunks: step for step in result.steps}
        return [{"answer": step.text, "score": step.confidence} for step in last.values()]
    return [step.text for step in result.steps if step.kind == "summary"]
