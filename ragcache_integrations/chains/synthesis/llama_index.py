"""Synthesis for LlamaIndex: adapters, see :mod:`ragcache_integrations.adaptive`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from llama_index.core.base.response.schema import RESPONSE_TYPE
from llama_index.core.callbacks import CallbackManager
from llama_index.core.indices.prompt_helper import ChatPromptHelper, PromptHelper
from llama_index.core.llms.llm import LLM
from llama_index.core.prompts import PromptTemplate
from llama_index.core.prompts.mixin import PromptDictType
from llama_index.core.response_synthesizers.base import BaseSynthesizer, QueryTextType
from llama_index.core.schema import MetadataMode, NodeWithScore
from llama_index.core.types import RESPONSE_TEXT_TYPE
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
from ragcache_integrations.chains.llama_index import (
    CopiedBySettings,
    LlamaIndexAsker,
    texts_before,
)
from ragcache_integrations.core.blocks import context_value
from ragcache_integrations.core.checks import unknown_name
from ragcache_integrations.core.flows import Flow, aoutputs, outputs
from ragcache_integrations.core.knobs import read_knobs, settings_of
from ragcache_integrations.core.prompt import PromptDocument
from ragcache_integrations.errors import ConfigurationError

from .knobs import MapReduceKnobs, SynthesisKnobs

if TYPE_CHECKING:
    from ragcache_integrations._arguments import MapReduceArguments

__all__ = [
    "SYNTHESIS_METADATA",
    "BaseSynthesis",
    "MapReduceSynthesis",
    "MapRerankSynthesis",
    "StuffSynthesis",
]

SYNTHESIS_METADATA = "synthesis"
"""Key of the :class:`~ragcache_integrations.adaptive.Synthesised` in the metadata of a response."""


@dataclass
class _Run:
    """A call of ``synthesize``: state that LlamaIndex doesn't pass to ``get_response``."""

    ids: Mapping[str, Sequence[str]]
    result: Synthesised | None = None
    metadata: dict[str, Any] | None = None

    def end(self, result: Synthesised) -> None:
        self.result = result
        if self.metadata is not None:
            self.metadata[SYNTHESIS_METADATA] = result

    def add_result(self, response: RESPONSE_TYPE) -> RESPONSE_TYPE:
        """Add the result to a response, now or when its stream has ended."""
        if response.metadata is None:
            response.metadata = {}
        self.metadata = response.metadata
        if self.result is not None:
            self.end(self.result)
        return response


_run: ContextVar[_Run | None] = ContextVar("ragcache_synthesis", default=None)


def _current_run() -> _Run:
    return _run.get() or _Run({})


class BaseSynthesis(CopiedBySettings, BaseSynthesizer):
    """Answers a question from nodes; pass it as ``response_synthesizer=``.

    The response has all nodes as ``source_nodes``. Its metadata has, besides that of the nodes, a
    :class:`~ragcache_integrations.adaptive.Synthesised` under :data:`SYNTHESIS_METADATA`: the nodes
    that the answer comes from, calls, usage, confidence, every step. For a streaming response it is
    complete when the stream has ended.

    Args:
        llm: Any LLM; ``None`` for LlamaIndex's ``Settings.llm``. ``RAGCacheLLM`` gets marked
            documents in its prompts.
        callback_manager: As for any synthesizer.
        prompts: The prompts of the synthesis. ``update_prompts`` can replace them by templates of
            ``{query_str}``.
        streaming: Whether responses are streams.
        empty_response: The answer if there are no nodes.
        **knobs: See :class:`~ragcache_integrations.chains.synthesis.knobs.SynthesisKnobs`, and for
            ``map_reduce`` :class:`~ragcache_integrations.chains.synthesis.knobs.MapReduceKnobs`.

    Raises:
        ConfigurationError: A knob is unknown or out of range.
    """

    method: ClassVar[Synthesis]
    _templates: ClassVar[tuple[str, ...]]
    _knobs_kind: ClassVar[type[SynthesisKnobs]] = SynthesisKnobs
    _argument_names: ClassVar[tuple[str, ...]] = ("llm", "streaming", "empty_response")
    _knobs: SynthesisKnobs

    def __init__(
        self,
        llm: LLM | None = None,
        callback_manager: CallbackManager | None = None,
        *,
        prompts: SynthesisPrompts = DEFAULT_PROMPTS,
        streaming: bool = False,
        empty_response: str | None = None,
        **knobs: Unpack[MapReduceArguments],
    ) -> None:
        self._knobs = read_knobs(self._knobs_kind, knobs)
        self._settings = settings_of(SynthesisSettings, self._knobs, prompts=prompts)
        super().__init__(
            llm=llm,
            callback_manager=callback_manager,
            # Not used; LlamaIndex's defaults need the LLM's metadata, which starts an engine.
            prompt_helper=PromptHelper(tokenizer=str.split),
            chat_prompt_helper=ChatPromptHelper(tokenizer=str.split),
            streaming=streaming,
            empty_response=empty_response,
        )
        self._support = LlamaIndexAsker(self._llm).logprob_support

    @override
    def get_response(
        self, query_str: str, text_chunks: Sequence[str], **response_kwargs: Any
    ) -> RESPONSE_TEXT_TYPE:
        """Answer a question from texts; other arguments are the LLM's."""
        if not text_chunks:
            return self._empty_response
        arguments = self._synthesis_arguments(query_str, text_chunks, response_kwargs)
        run = _current_run()
        if self._streaming:
            return outputs(_texts(arguments, run))
        result = synthesise(*arguments)
        run.end(result)
        return result.text

    @override
    async def aget_response(
        self, query_str: str, text_chunks: Sequence[str], **response_kwargs: Any
    ) -> RESPONSE_TEXT_TYPE:
        """Async version of :meth:`get_response`."""
        if not text_chunks:
            return self._empty_response
        arguments = self._synthesis_arguments(query_str, text_chunks, response_kwargs)
        run = _current_run()
        if self._streaming:
            return aoutputs(_texts(arguments, run))
        result = await asynthesise(*arguments)
        run.end(result)
        return result.text

    @override
    def synthesize(
        self,
        query: QueryTextType,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
        **response_kwargs: Any,
    ) -> RESPONSE_TYPE:
        """Answer a question from nodes; other arguments are the LLM's."""
        with _running(nodes) as run:
            return run.add_result(
                super().synthesize(query, nodes, additional_source_nodes, **response_kwargs)
            )

    @override
    async def asynthesize(
        self,
        query: QueryTextType,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
        **response_kwargs: Any,
    ) -> RESPONSE_TYPE:
        """Async version of :meth:`synthesize`."""
        with _running(nodes) as run:
            return run.add_result(
                await super().asynthesize(query, nodes, additional_source_nodes, **response_kwargs)
            )

    @override
    def _arguments(self) -> dict[str, Any]:
        return {**super()._arguments(), "prompts": self._settings.prompts}

    @override
    def _get_prompts(self) -> PromptDictType:
        prompts = self._settings.prompts
        return {
            name: PromptTemplate(getattr(prompts, name).replace("{question}", "{query_str}"))
            for name in self._templates
        }

    @override
    def _update_prompts(self, prompts: PromptDictType) -> None:
        own = {name: prompt for name, prompt in prompts.items() if ":" not in name}
        for name in sorted(set(own) - set(self._templates)):
            raise ConfigurationError(unknown_name("prompt", name, self._templates))
        texts = {
            name: prompt.get_template(self._llm).replace("{query_str}", "{question}")
            for name, prompt in own.items()
        }
        changed = replace(self._settings.prompts, **texts)
        self._settings = self._settings.model_copy(update={"prompts": changed})

    def _synthesis_arguments(
        self, question: str, texts: Sequence[str], call: dict[str, Any]
    ) -> Any:
        # Nodes with the same text have their ids in the order of the nodes.
        ids = {text: iter(own) for text, own in _current_run().ids.items()}
        # An empty node becomes a blank, so that the others keep their places.
        chunks = [PromptDocument(text or " ", next(ids.get(text, iter(())), "")) for text in texts]
        asker = LlamaIndexAsker(self._llm, call, self._support)
        config = self._knobs._config(self.method, len(chunks))  # noqa: SLF001 - for the adapters
        return asker, question, chunks, config, self._settings


class StuffSynthesis(BaseSynthesis):
    """Puts all nodes into one prompt: one call of the LLM. See :class:`BaseSynthesis`."""

    method: ClassVar[Synthesis] = "stuff"
    _templates: ClassVar[tuple[str, ...]] = ("system", "answer")


class MapReduceSynthesis(BaseSynthesis):
    """Summarises each node separately and answers from the summaries.

    It takes a call for each node, all at the same time, and one more. See :class:`BaseSynthesis`.
    """

    method: ClassVar[Synthesis] = "map_reduce"
    _templates: ClassVar[tuple[str, ...]] = ("system", "summary", "reduce")
    _knobs_kind: ClassVar[type[SynthesisKnobs]] = MapReduceKnobs


class MapRerankSynthesis(BaseSynthesis):
    """Answers from each node separately and takes the answer with the highest confidence.

    It takes a call for each node, all at the same time. Confidence comes from the log-probabilities
    of the answer's tokens; without them, the LLM rates its answer. Answers that say "not in the
    document" come last. A streaming response has one piece. See :class:`BaseSynthesis`.
    """

    method: ClassVar[Synthesis] = "map_rerank"
    _templates: ClassVar[tuple[str, ...]] = ("system", "candidate", "scored")


def _texts(arguments: tuple[Any, ...], run: _Run) -> Flow:
    return texts_before(stream_synthesis(*arguments), astream_synthesis(*arguments), run.end)


@contextmanager
def _running(nodes: Sequence[NodeWithScore]) -> Iterator[_Run]:
    # LlamaIndex passes only texts to get_response(), but the engine keeps KV caches by id.
    ids: dict[str, list[str]] = {}
    for node in nodes:
        text = node.node.get_content(metadata_mode=MetadataMode.LLM)
        ids.setdefault(text, []).append(node.node_id)
    run = _Run(ids)
    with context_value(_run, run):
        yield run
