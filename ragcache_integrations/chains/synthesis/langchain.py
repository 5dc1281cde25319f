"""Synthesis for LangChain: adapters, see :mod:`ragcache_integrations.adaptive`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import aclosing, closing
from typing import Annotated, Any, ClassVar, get_args

from langchain_core.documents import Document
from langchain_core.prompts import BasePromptTemplate, PromptTemplate, format_document
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.utils import AddableDict
from pydantic import (
    BeforeValidator,
    Field,
    PrivateAttr,
    SkipValidation,
)
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
from ragcache_integrations.adaptive.synthesis.prompts import DEFAULT_PROMPTS
from ragcache_integrations.chains.askers.langchain import LangChainAsker, LangChainModel
from ragcache_integrations.chains.streamed.langchain import Output, StreamedRunnable
from ragcache_integrations.chains.synthesis.knobs import MapReduceKnobs, SynthesisKnobs
from ragcache_integrations.core.prompt import PromptDocument
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.sharing.shared_state import Identity

__all__ = [
    "MapReduceSynthesis",
    "MapRerankSynthesis",
    "StuffSynthesis",
    "SynthesisRunnable",
    "synthesis_chain",
]

Values = Output


def _check_template(value: object) -> object:
    if not isinstance(value, BasePromptTemplate):
        msg = f"document_prompt must be one of LangChain's templates, got {type(value).__name__}"
        raise ConfigurationError(msg)
    return value


# Without pydantic's own check, which would make a new one.
DocumentPrompt = Annotated[
    BasePromptTemplate[Any], SkipValidation, BeforeValidator(_check_template)
]

DOCUMENTS_KEYS = ("input_documents", "context")


class SynthesisRunnable(SynthesisKnobs, StreamedRunnable[Values]):
    """Answers a question from documents.

    Input: a dict of ``input_documents`` or ``context``, a list of ``Document`` objects or strings
    with the most relevant first, and ``question``. Output: the input and, besides, ``output_text``
    (the answer), ``citations`` (the documents that it comes from) and ``synthesis``
    (:class:`~ragcache_integrations.adaptive.Synthesised`: calls, usage, confidence, every step).
    Streams bring them in this order, the answer in pieces.

    For callbacks the model's runs are children of this one's. Arguments of a call, such as
    ``temperature``, are the model's. The knobs are those of
    :class:`~ragcache_integrations.chains.synthesis.knobs.SynthesisKnobs`.

    Attributes:
        llm: Any chat model or LLM. ``ChatRAGCache`` and ``RAGCacheLLM`` are told which part of a
            prompt is which document.
        prompts: What is asked.
        document_prompt: How a document stands in the prompt.
        return_intermediate_steps: Whether to add ``intermediate_steps`` to the output: the
            summaries of ``map_reduce``; for ``map_rerank`` a dict of ``answer`` and ``score``
            for each document.

    Raises:
        ConfigurationError: An argument is unknown, missing or out of its range.
    """

    method: ClassVar[Synthesis]
    _written = frozenset({"output_text", "citations", "synthesis", "intermediate_steps"})

    llm: Runnable[Any, Any]
    prompts: SynthesisPrompts = DEFAULT_PROMPTS
    document_prompt: DocumentPrompt = PromptTemplate.from_template("{page_content}")
    return_intermediate_steps: bool = Field(default=False, strict=True)

    _model: LangChainModel = PrivateAttr()
    _synthesis_settings: SynthesisSettings = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Look at the parts."""
        super().model_post_init(context)
        self._model = self.shared_state.core(
            ("model", Identity(self.llm)), lambda: LangChainModel(self.llm)
        )
        self._synthesis_settings = self._settings_with(self.prompts)

    @override
    def _whole(self, given: Values, config: RunnableConfig, call: dict[str, Any]) -> Values:
        asked = _Asked(self, given)
        asker = LangChainAsker(self._model, config, call)
        return asked.whole(
            synthesise(asker, asked.question, asked.chunks, asked.config, self._synthesis_settings)
        )

    @override
    async def _awhole(self, given: Values, config: RunnableConfig, call: dict[str, Any]) -> Values:
        asked = _Asked(self, given)
        asker = LangChainAsker(self._model, config, call)
        return asked.whole(
            await asynthesise(
                asker, asked.question, asked.chunks, asked.config, self._synthesis_settings
            )
        )

    @override
    def _pieces(
        self, given: Values, config: RunnableConfig, call: dict[str, Any]
    ) -> Generator[Values]:
        asked = _Asked(self, given)
        yield self._passed_on(given)
        asker = LangChainAsker(self._model, config, call)
        stream = stream_synthesis(
            asker, asked.question, asked.chunks, asked.config, self._synthesis_settings
        )
        with closing(stream) as pieces:
            for piece in pieces:
                yield asked.piece(piece)

    @override
    async def _apieces(
        self, given: Values, config: RunnableConfig, call: dict[str, Any]
    ) -> AsyncGenerator[Values]:
        asked = _Asked(self, given)
        yield self._passed_on(given)
        asker = LangChainAsker(self._model, config, call)
        stream = astream_synthesis(
            asker, asked.question, asked.chunks, asked.config, self._synthesis_settings
        )
        async with aclosing(stream) as pieces:
            async for piece in pieces:
                yield asked.piece(piece)


class StuffSynthesis(SynthesisRunnable):
    """Puts all documents into one prompt: one call of the model. See :class:`SynthesisRunnable`."""

    method: ClassVar[Synthesis] = "stuff"


class MapReduceSynthesis(MapReduceKnobs, SynthesisRunnable):
    """Has each document summarised by itself and answers from the summaries.

    One call for each document, all at once, and one more. See :class:`SynthesisRunnable`; besides,
    there is ``intermediate_length``, the most words of each summary.
    """

    method: ClassVar[Synthesis] = "map_reduce"


class MapRerankSynthesis(SynthesisRunnable):
    """Answers from each document by itself and takes the answer that the model is surest of.

    One call for each document, all at once. How sure the model is, its tokens' log-probabilities
    tell; where it gives none, it rates itself. Answers that say "not in the document" come last.
    A stream brings the answer in one piece. See :class:`SynthesisRunnable`.
    """

    method: ClassVar[Synthesis] = "map_rerank"


_CLASSES: dict[str, type[SynthesisRunnable]] = {
    kind.method: kind for kind in (StuffSynthesis, MapReduceSynthesis, MapRerankSynthesis)
}


def synthesis_chain(
    llm: Runnable[Any, Any], chain_type: Synthesis = "stuff", **knobs: Any
) -> SynthesisRunnable:
    """Make a chain that answers questions from documents, as ``load_qa_chain`` did.

    Input and output are as they were: ``{"input_documents": [...], "question": ...}`` in,
    ``output_text`` and on demand ``intermediate_steps`` out, with citations and more besides.

    Args:
        llm: Any chat model or LLM.
        chain_type: ``stuff``, ``map_reduce`` or ``map_rerank``.
        **knobs: See :class:`SynthesisRunnable`; for ``map_reduce`` also ``intermediate_length``.

    Raises:
        ConfigurationError: The type or a knob is unknown, or a knob out of its range.
    """
    if chain_type not in _CLASSES:
        msg = f"chain_type must be one of {', '.join(get_args(Synthesis))}, got {chain_type!r}"
        raise ConfigurationError(msg)
    return _CLASSES[chain_type](llm=llm, **knobs)


class _Asked:
    """One input of a chain, in the core's terms."""

    def __init__(self, chain: SynthesisRunnable, values: Any) -> None:
        if not isinstance(values, Mapping):
            msg = f"the input must be a dict, got {type(values).__name__}"
            raise ConfigurationError(msg)
        key = next((key for key in DOCUMENTS_KEYS if key in values), None)
        if key is None or "question" not in values:
            msg = (
                f"the input must have {' or '.join(DOCUMENTS_KEYS)}, and question, "
                f"got {', '.join(map(str, values)) or 'nothing'}"
            )
            raise ConfigurationError(msg)
        self._chain = chain
        self._values = values
        self.question = values["question"]
        self._documents = [_document(key, one) for one in _listed(key, values[key])]
        # A document without text says nothing; a blank keeps its place.
        self.chunks = [
            PromptDocument(format_document(one, chain.document_prompt) or " ", one.id or "")
            for one in self._documents
        ]
        self.config = chain._config(chain.method, len(self.chunks))  # noqa: SLF001 - a part of it

    def whole(self, result: Synthesised) -> Values:
        """The output."""
        return {**self._values, "output_text": result.text, **self.rest(result)}

    def piece(self, piece: str | Synthesised) -> Values:
        """A piece of a stream."""
        if isinstance(piece, str):
            return AddableDict(output_text=piece)
        return AddableDict(self.rest(piece))

    def rest(self, result: Synthesised) -> Values:
        """What the output has beside the answer."""
        rest: Values = {
            "citations": [self._documents[one.index] for one in result.citations],
            "synthesis": result,
        }
        if self._chain.return_intermediate_steps:
            rest["intermediate_steps"] = _intermediate_steps(result)
        return rest


def _listed(key: str, given: object) -> list[Any]:
    if not isinstance(given, list | tuple):
        msg = f"{key} must be a list of documents, got {type(given).__name__}"
        raise ConfigurationError(msg)
    return list(given)


def _document(key: str, given: object) -> Document:
    if isinstance(given, str):
        return Document(given)
    if not isinstance(given, Document):
        msg = f"{key} must hold documents or strings, got {type(given).__name__}"
        raise ConfigurationError(msg)
    return given


def _intermediate_steps(result: Synthesised) -> list[Any]:
    if result.method == "map_rerank":
        # A model that was found to give no log-probabilities was asked twice.
        last = {step.chunks: step for step in result.steps}
        return [{"answer": step.text, "score": step.confidence} for step in last.values()]
    return [step.text for step in result.steps if step.kind == "summary"]
