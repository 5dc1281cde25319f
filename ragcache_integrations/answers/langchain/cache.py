"""Cached answers as a LangChain Runnable, and what its chain's callbacks report meanwhile.

That is: documents, how models' answers ended, and what parsers stream.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, TypeGuard
from uuid import UUID

import numpy as np
from langchain_core.callbacks import (
    AsyncCallbackManagerForChainRun,
    BaseCallbackHandler,
    CallbackManagerForChainRun,
)
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.messages import BaseMessage, ToolMessage
from langchain_core.outputs import Generation, LLMResult
from langchain_core.retrievers import RetrieverLike
from langchain_core.runnables import (
    Runnable,
    RunnableConfig,
    RunnableLambda,
    RunnableSerializable,
    ensure_config,
    patch_config,
)
from langchain_core.runnables.config import merge_configs
from pydantic import BeforeValidator, ConfigDict, PrivateAttr
from typing_extensions import override

from ragcache_integrations.answers.changes import ChangeWatch
from ragcache_integrations.answers.controls import AnswerControls
from ragcache_integrations.answers.core import AnswerCore
from ragcache_integrations.answers.entries import (
    CachedAnswer,
    Question,
    Vector,
    document_identity,
)
from ragcache_integrations.answers.finish import is_blank, unfinished, why_unkept
from ragcache_integrations.answers.flow import AWAITING, BLOCKING, AnswerFlow, Lookup, Way, finished
from ragcache_integrations.answers.knobs import AnswerKnobs, check_embedded
from ragcache_integrations.answers.types import (
    AnswerExplanation,
    AnswerTrace,
    unkept_explanation,
)
from ragcache_integrations.errors import ConfigurationError, RAGCacheError
from ragcache_integrations.retrievers.cached.langchain.retriever import ApproximateCacheRetriever
from ragcache_integrations.retrievers.copying import copy_model
from ragcache_integrations.retrievers.keys import (
    Surroundings,
    TextWindow,
    context_text,
    freeze_arguments,
    in_context,
    said_besides,
    turns_form,
    window_of,
)
from ragcache_integrations.retrievers.retrieval import checked_results
from ragcache_integrations.retrievers.sharing import Identity, Rebuildable

from .values import (
    CODEC,
    INPUT_KEYS,
    WATCHED,
    Pieces,
    as_piece,
    is_conversation,
    judge_outputs,
    names_in,
    read_input,
    renewed,
    same_output,
    why_ended_early,
    why_no_message,
    why_none,
)

__all__ = ["ANSWER_CACHE_EVENT", "AnswerCache", "HeardRun", "silent"]

ANSWER_CACHE_EVENT = "answer_cache"
"""Name of the custom event that every call sends to its callbacks; its data is a dict of the
:class:`~ragcache_integrations.answers.AnswerTrace`."""

_INCOMPARABLE = "the input or a document's metadata hold values that can't be compared"
_OTHER_DOCUMENTS = (
    "the chain did not answer from what the retriever finds for the question. Give the chain the "
    "documents with documents_key=, or the answer cache the retriever that the chain has"
)
_MORE_DOCUMENTS = (
    "the chain searches for other documents, too, which the answer cache does not compare. Give it "
    "a retriever that finds all of them"
)
_GREW = (
    "what came in pieces may be all of the answer so far, again and again, as parsers of JSON "
    "stream it. Answers of invoke are kept, and served to streams"
)
_OTHER_MESSAGES = "it has messages of the conversation before it, which another one may not have"

_BARE = (
    "The input has a conversation as %r, and questions are compared without it: an answer is "
    "served only after exactly the same turns, and the retriever gets the question alone. Pass "
    "context_key=%r, or put the answer cache after the step that condenses the question"
)

_MODEL = "its model"
_RETRIEVER = "its retriever"


def _as_runnable(value: object) -> object:
    """Wrap a function, as LangChain does within chains."""
    return RunnableLambda(value) if callable(value) and not isinstance(value, Runnable) else value


class AnswerCache(AnswerControls, Rebuildable, AnswerKnobs, RunnableSerializable[Any, Any]):
    """Serves the answer to an earlier question again, where nothing that it depends on differs.

    Wrap any chain from a question to an answer, together with its retriever::

        cached = AnswerCache(chain=chain, retriever=retriever)
        cached.invoke("who wrote the iliad")
        cached.invoke("who wrote the iliad, please")  # from the cache, once that is proven safe

    The retriever is asked for every question. An earlier answer is served only if its question

    - found the same documents, by id, text and metadata,
    - came with the same other inputs (such as a chat history) and arguments, of the same
      namespace, and no setting of the chain has changed since,
    - came from the same user, as far as the run says who that is, by its ``context``,
      ``configurable``, ``metadata`` and tags, or the application by its context variables,
    - has the same numbers, dates, names, units, negations and comparisons (``guard``),
    - and the same words, or is nearer than the tolerance, which is learnt (``tolerance="auto"``).

    A chain answers the same question from the same documents in the same way only if it is
    deterministic: choose temperature 0. Streams have a cached answer in one piece.

    The chain may retrieve on its own; an answer is kept if it retrieved the same documents. With
    ``documents_key`` it gets them, in a dict with its other inputs, and needs no retriever.

    For every call, callbacks get a custom event named ``answer_cache``. It is safe to use from
    several threads and event loops. Equal questions at the same time are not joined. The knobs are
    those of
    :class:`~ragcache_integrations.answers.AnswerKnobs`; a call's ``namespace=`` replaces that one.

    Attributes:
        chain: Answers questions.
        retriever: Finds the documents that it answers from.
        embeddings: Embeds questions; ``None`` for the retriever's or its store's model. Without any
            only the same words are served again.
        input_key: Name of the question in a dict; ``None`` for ``input``, ``question`` or
            ``query``.
        context_key: Name of the turns before the question in a dict, such as ``chat_history``: a
            follow-up question is then compared, and its documents are found, together with them.
            ``None``: they must be equal, as all other inputs.
        documents_key: Name of the documents in the dict that the chain gets; ``None``: the chain
            gets what the cache got.
        answer_key: Name of the text of the answer, where the chain returns a dict.
        keep: Returns whether an answer is kept; ``None``: each that is one, and neither empty, cut
            off nor filtered, as far as the answer and the chain's models say.
        same_answer: Whether two answers say the same, from which is learnt; ``None``: whether their
            texts are equal but for what cannot carry meaning.
        judge: A Runnable or a function, asked in the background whether two answers say the same
            whose texts differ. Gets a dict of ``question``, ``answer``, ``other_question`` and
            ``other_answer``, and returns whether they do, or a text that begins with *yes*.

    Raises:
        ConfigurationError: An argument is unknown, missing or out of range.
    """

    # Other bases would have it ignore what they don't know.
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    chain: Runnable[Any, Any]
    retriever: RetrieverLike
    embeddings: Embeddings | None = None
    input_key: str | None = None
    context_key: str | None = None
    documents_key: str | None = None
    answer_key: str | None = None
    keep: Callable[[Any], object] | None = None
    same_answer: Callable[[Any, Any], bool] | None = None
    judge: Annotated[Runnable[Any, Any] | None, BeforeValidator(_as_runnable)] = None

    _flow: AnswerFlow[Any] = PrivateAttr()
    _is_cut: TextWindow = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Make the cache, or take that of the object which this one was made from."""
        super().model_post_init(context)
        knobs = AnswerKnobs(**{name: getattr(self, name) for name in AnswerKnobs.model_fields})
        own = isinstance(self.retriever, ApproximateCacheRetriever)
        embeds = own or _model_of(self.retriever, self.embeddings) is not None
        check_embedded(knobs, "embeddings=", embeds=embeds)
        # A call's namespace replaces the cache's.
        of_the_cache = dict(knobs) | {"namespace": ""}
        parts = (self.chain, self.retriever, self.embeddings)
        functions = (self.same_answer, self.judge, self.keep)
        names = (self.input_key, self.context_key, self.documents_key, self.answer_key)
        settings = (*map(Identity, (*parts, *functions)), *names, *of_the_cache.values())
        self._is_cut = window_of(_model_of(self.retriever, self.embeddings))
        # One watch for all copies: what one of them has seen is a change for the others, too.
        watch = self.shared_state.core(
            (Identity(self.chain), "watch"), lambda: ChangeWatch(self.chain, WATCHED)
        )
        self._flow = self.shared_state.core(settings, lambda: self._make_flow(knobs, watch))

    def _make_flow(self, knobs: AnswerKnobs, watch: ChangeWatch) -> AnswerFlow[Any]:
        echoed = {self.input_key, self.context_key, self.documents_key}
        same = self.same_answer or partial(same_output, self.answer_key, echoed=echoed)
        judge = None if self.judge is None else partial(judge_outputs, self.judge, self.answer_key)
        return AnswerFlow(AnswerCore(knobs), same, judge, CODEC, watch)

    @override
    def invoke(
        self,
        input: Any,
        config: RunnableConfig | None = None,
        *,
        namespace: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Answer; other arguments are the chain's."""

        def answer(value: Any, run_manager: CallbackManagerForChainRun, config: Any) -> Any:
            return finished(
                _Call(self, BLOCKING, value, config, namespace, kwargs).serve(run_manager)
            )

        run: Any = self._call_with_config  # its types don't allow functions of input and config
        return run(answer, input, config)

    @override
    async def ainvoke(
        self,
        input: Any,
        config: RunnableConfig | None = None,
        *,
        namespace: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Async version of :meth:`invoke`."""

        async def answer(
            value: Any, run_manager: AsyncCallbackManagerForChainRun, config: Any
        ) -> Any:
            call = _Call(self, AWAITING, value, config, namespace, kwargs)
            return await call.serve(run_manager)

        run: Any = self._acall_with_config  # as above
        return await run(answer, input, config)

    @override
    def stream(
        self,
        input: Any,
        config: RunnableConfig | None = None,
        *,
        namespace: str | None = None,
        **kwargs: Any,
    ) -> Iterator[Any]:
        """Answer in pieces; a cached answer is one. What is left halfway is not kept."""

        def answer(
            values: Iterator[Any], run_manager: CallbackManagerForChainRun, config: Any
        ) -> Iterator[Any]:
            call = _Call(self, BLOCKING, next(values), config, namespace, kwargs)
            earlier = finished(call.look_up(run_manager))
            if earlier is not None:
                yield as_piece(call.served(earlier))
                return
            for piece in call.around.each(call.stream()):
                yield call.add(piece)
            finished(call.keep_pieces())

        run: Any = self._transform_stream_with_config  # as above
        yield from run(iter([input]), answer, config)

    @override
    async def astream(
        self,
        input: Any,
        config: RunnableConfig | None = None,
        *,
        namespace: str | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[Any]:
        """Async version of :meth:`stream`."""

        async def inputs() -> AsyncIterator[Any]:
            yield input

        async def answer(
            values: AsyncIterator[Any], run_manager: AsyncCallbackManagerForChainRun, config: Any
        ) -> AsyncIterator[Any]:
            call = _Call(self, AWAITING, await anext(values), config, namespace, kwargs)
            earlier = await call.look_up(run_manager)
            if earlier is not None:
                yield as_piece(call.served(earlier))
                return
            async for piece in call.around.aeach(call.stream()):
                yield call.add(piece)
            await call.keep_pieces()

        run: Any = self._atransform_stream_with_config  # as above
        async for piece in run(inputs(), answer, config):
            yield piece

    def explain(
        self,
        question: Any,
        config: RunnableConfig | None = None,
        *,
        namespace: str | None = None,
        **kwargs: Any,
    ) -> AnswerExplanation:
        """Explain why a question would be served an earlier answer, or not. Nothing is answered.

        The retriever is asked for its documents. The arguments are those of :meth:`invoke`.

        Raises:
            Exception: Any error of the retriever or the embedding model.
        """
        call = _Call(self, BLOCKING, question, ensure_config(config), namespace, kwargs)
        return finished(call.explain())

    async def aexplain(
        self,
        question: Any,
        config: RunnableConfig | None = None,
        *,
        namespace: str | None = None,
        **kwargs: Any,
    ) -> AnswerExplanation:
        """Async version of :meth:`explain`."""
        call = _Call(self, AWAITING, question, ensure_config(config), namespace, kwargs)
        return await call.explain()


class _Call:
    """One call of the cache: its question, and what is done with it."""

    def __init__(
        self,
        cache: AnswerCache,
        way: Way,
        value: Any,
        config: RunnableConfig,
        namespace: str | None,
        arguments: dict[str, Any],
    ) -> None:
        if not isinstance(namespace, str | None):
            raise ConfigurationError(f"namespace must be a string, got {namespace!r:.100}")
        self._cache = cache
        self._way = way
        self._value = value
        self._config = config
        self._arguments = arguments
        self._namespace = cache.namespace if namespace is None else namespace
        self._text, self._others = read_input(value, cache.input_key)
        key = cache.context_key
        turns = self._turns = None if key is None else self._others.pop(key, None)
        self._context = context_text(turns)
        self._roles, self._form = turns_form(turns)
        self._whole = in_context(self._text, self._context)
        self._flow = cache._flow  # noqa: SLF001 - a call is a part of its cache
        self.around = self._flow.watch.surroundings(config)
        conversation = next(
            (name for name in self._others if is_conversation(self._others[name])), ""
        )
        if conversation:
            self._flow.warn(_BARE % (conversation, conversation))
        self._documents: list[Document] = []
        self._lookup: Lookup[Any] | None = None
        self._heard = HeardRun()
        self._pieces = Pieces()
        self._streams = False
        retriever, given = cache.retriever, cache.embeddings
        ours = isinstance(retriever, ApproximateCacheRetriever)
        # Others have tenants of their own, by filter or otherwise.
        self._of_tenant = {"namespace": self._namespace} if ours and self._namespace else {}
        self._own_retriever: Any = retriever if ours and given is None else None
        self._model: Any = _model_of(retriever, given)

    # The documents, and the question with them

    async def _question(self) -> Question | None:
        """Find the documents, and return the question with all that its answer depends on.

        ``None`` if that is unknown.

        Raises:
            ConfigurationError: The retriever returned something else than documents.
        """
        retriever: Any = self._cache.retriever
        ask = self._way(
            retriever.invoke, retriever.ainvoke, self._whole, self._config, **self._of_tenant
        )
        self._documents = list(checked_results(await ask, Document))
        identities = identities_of(self._documents)
        said = said_besides(input=self._value, question=self._text, turns=self._turns)
        turns = enumerate(self._turns) if isinstance(self._turns, list | tuple) else ()
        said |= said_besides(**{f"turn {number}": turn for number, turn in turns})
        said |= {"inputs": self._others, "arguments": self._arguments}
        frozen = freeze_arguments(said)
        if identities is None or frozen.opaque or self.around.alone:
            return None
        scope = (self._namespace, frozen.key | self.around.frozen.key, self._roles)
        return Question(
            self._text, identities, scope, self._context, self.around.version, self._form
        )

    @property
    def _embeds(self) -> bool:
        """Whether there is something to embed questions with."""
        return self._own_retriever is not None or self._model is not None

    async def _embed(self) -> Vector | None:
        """Embed the question; ``None`` where the model does not read all of it.

        Our own retriever has just done so, and remembers it.
        """
        own, model, way = self._own_retriever, self._model, self._way
        if own is not None:
            ask = way(own.embed_question, own.aembed_question, self._whole, **self._of_tenant)
        else:
            ask = way(model.embed_query, model.aembed_query, self._whole)
        embedding: Vector = np.asarray(await ask, np.float32)
        return None if self._cache._is_cut(self._whole) else embedding  # noqa: SLF001 - as above

    async def explain(self) -> AnswerExplanation:
        """Explain why the question would be served an earlier answer, or not."""
        question = await self._question()
        embedding = await self._embed() if self._embeds else None
        if question is None:
            return unkept_explanation(self._unknown)
        return await self._way(self._flow.explain, self._flow.aexplain, question, embedding)

    async def look_up(
        self, run: CallbackManagerForChainRun | AsyncCallbackManagerForChainRun
    ) -> CachedAnswer[Any] | None:
        """Look the question up, and report what happens to it; return the answer to be served."""
        question = await self._question()
        if question is not None:
            flow, embed = self._flow, self._way.function(self._embed) if self._embeds else None
            self._lookup = await self._way(
                flow.look_up, flow.alook_up, question, embed, self.around
            )
        lookup = self._lookup
        # A run's child takes a while to make, so only if a handler of it hears of events.
        if not all(handler.ignore_custom_event for handler in run.inheritable_handlers):
            trace = AnswerTrace(hit=False, reason=self._unknown) if lookup is None else lookup.trace
            child: Any = run.get_child()
            report = child.on_custom_event
            await self._way(report, report, ANSWER_CACHE_EVENT, asdict(trace), run.run_id)
        if lookup is None or lookup.entry is None:
            return None
        self._flow.check(lookup, *self._way.again(self._answer_unheard))
        return lookup.entry

    @property
    def _unknown(self) -> str:
        """Why it is unknown what the answer depends on."""
        return self.around.alone or _INCOMPARABLE

    # The answer

    def _ask_chain(self, way: Way, config: RunnableConfig) -> Coroutine[Any, Any, Any]:
        chain = self._cache.chain
        return way(chain.invoke, chain.ainvoke, self._for_chain(), config, **self._arguments)

    def _for_chain(self) -> Any:
        key = self._cache.documents_key
        if key is None:
            return self._value
        name = self._cache.input_key or "input"
        inputs = self._value if isinstance(self._value, Mapping) else {name: self._text}
        return {**inputs, key: [copy_model(document) for document in self._documents]}

    async def serve(self, run: CallbackManagerForChainRun | AsyncCallbackManagerForChainRun) -> Any:
        """Return an earlier answer, or answer the question."""
        earlier = await self.look_up(run)
        if earlier is not None:
            return self.served(earlier)
        with self.around.watched():
            output = await self._ask_chain(self._way, self._heard.within(self.around))
        await self._keep(output)
        return output

    def stream(self) -> Any:
        """Answer the question in pieces, for :meth:`add`."""
        self._streams = True
        chain = self._cache.chain
        stream = chain.astream if self._way.awaits else chain.stream
        with self.around.watched():
            # Made here, as LangChain puts what the enclosing run's configuration holds into it.
            config = self._heard.within(self.around)
            return stream(self._for_chain(), config, **self._arguments)

    def add(self, piece: Any) -> Any:
        """Take a piece of the answer, and return it."""
        self._pieces.add(piece)
        return piece

    async def _answer_unheard(self, way: Way) -> Any:
        """Answer the question once more, in a run of its own that no callbacks of the call hear.

        Raises:
            RAGCacheError: What came is no answer.
        """
        heard = HeardRun()
        output = await self._ask_chain(way, heard.alone(silent(self._config)))
        reason = self._why_none(heard, output)
        if reason is not None:
            raise RAGCacheError(f"the answer can't be compared: {reason}")
        return output

    def served(self, earlier: CachedAnswer[Any]) -> Any:
        """Return an earlier answer as a new one."""
        return renewed(earlier.answer, names_in(self._others))

    async def keep_pieces(self) -> None:
        """Keep the answer that came in pieces."""
        await self._keep(self._pieces.whole)

    async def _keep(self, output: Any) -> None:
        """Keep an answer, if it is known what it depends on."""
        if self._is_known(self._lookup, output):
            await self._way(self._flow.keep, self._flow.akeep, self._lookup, output)

    def _is_known(self, lookup: Lookup[Any] | None, output: Any) -> TypeGuard[Lookup[Any]]:
        """Whether this is an answer, and it is known what it depends on; if not, it is left out."""
        if lookup is not None and self._streams and (output is None or self._heard.grew):
            self._flow.leave_out(_GREW)
        elif lookup is None or output is None:
            self._flow.leave_out()
        elif (reason := self._why_other(lookup.question)) is not None:
            self._flow.leave_out(reason, f"it had {self._heard.told()}")
        elif (reason := self._why_none(self._heard, output)) is not None:
            self._flow.leave_out(reason)
        elif names_in(output) & names_in(self._turns) - names_in(self._others):
            self._flow.leave_out(_OTHER_MESSAGES)
        else:
            return True
        return False

    def _why_other(self, question: Question) -> str | None:
        """Return why the answer is from other documents than those of the question, if it is."""
        gets_them = self._cache.documents_key is not None
        if self._heard.only(question.documents) or (gets_them and not self._heard.searched):
            return None
        return _MORE_DOCUMENTS if gets_them else _OTHER_DOCUMENTS

    def _why_none(self, heard: HeardRun, output: Any) -> str | None:
        """Return why this is no answer; ``None``: it is one."""
        if self._cache.keep is not None:
            return why_unkept(self._cache.keep, output)
        given = self._value if isinstance(self._value, Mapping) else ()
        names = {*given, *INPUT_KEYS, self._cache.documents_key}
        return heard.reason or why_none(output, self._cache.answer_key, names)


def silent(config: RunnableConfig) -> RunnableConfig:
    """Return a configuration for a run that no callbacks hear."""
    return patch_config(config, callbacks=None) | {"callbacks": []}


def _model_of(retriever: object, embeddings: Embeddings | None) -> Embeddings | None:
    """Return what embeds questions, if it is known."""
    store = getattr(retriever, "vectorstore", None)
    own = getattr(retriever, "embeddings", None)
    model = embeddings or own or getattr(store, "embeddings", None)
    return model if isinstance(model, Embeddings) else None


class HeardRun(BaseCallbackHandler):
    """Hears which documents a chain retrieves on its own, and how its models' answers ended.

    Attributes:
        grew: Whether a parser streamed what it read so far again and again, so that the sum of its
            pieces is not what it returns for the whole.
    """

    run_inline = True

    def __init__(self) -> None:
        self._retrieving: set[UUID] = set()
        self._inner: set[UUID] = set()
        self._documents: list[list[Document]] = []
        self._parsing: set[UUID] = set()
        self.grew = False
        self._around: Surroundings | None = None
        self._failed: set[str] = set()
        self._tools: dict[UUID, str] = {}
        self._reason: str | None = None

    def within(self, around: Surroundings) -> RunnableConfig:
        """Return a configuration for the runs of a call, which are heard."""
        self._around = around
        return self.alone(around.config)

    def alone(self, config: RunnableConfig) -> RunnableConfig:
        """Return a configuration for runs that are heard, and whose answer is not kept."""
        return merge_configs(config, {"callbacks": [self]})

    @property
    def reason(self) -> str | None:
        """Why what was answered is no answer, as its models report; ``None``: it is one."""
        if self._reason is None and self._failed:
            return f"{min(self._failed)} failed, and nothing like it was used instead"
        return self._reason

    @override
    def on_retriever_start(
        self, *args: Any, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        if parent_run_id in self._retrieving:
            self._inner.add(run_id)
        self._retrieving.add(run_id)

    @override
    def on_retriever_end(self, documents: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._failed.discard(_RETRIEVER)
        if run_id not in self._inner:
            self._documents.append(list(documents))

    @override
    def on_retriever_error(self, *args: Any, **kwargs: Any) -> None:
        self._failed.add(_RETRIEVER)

    @override
    def on_tool_start(
        self, serialized: Any, input_str: str, *, run_id: UUID, **kwargs: Any
    ) -> None:
        self._tools[run_id] = f"its tool {(serialized or {}).get('name', '')}"

    @override
    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        if isinstance(output, ToolMessage) and output.status == "error":
            self.on_tool_error(run_id=run_id)
        else:
            self._failed.discard(self._tools.get(run_id, ""))

    @override
    def on_tool_error(self, *args: Any, run_id: UUID, **kwargs: Any) -> None:
        self._failed.add(self._tools.get(run_id, "its tool"))

    @override
    def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: without it, prompts would be written as texts for :meth:`on_llm_start`."""

    @override
    def on_llm_end(self, response: LLMResult, **kwargs: Any) -> None:
        self._failed.discard(_MODEL)
        reason = unfinished(response.llm_output)
        for generation in (each for several in response.generations for each in several):
            reason = reason or _why_no_generation(generation)
        self._reason = self._reason or reason

    @override
    def on_llm_error(self, *args: Any, **kwargs: Any) -> None:
        self._failed.add(_MODEL)

    @override
    def on_chain_start(self, serialized: Any, inputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        thread = (kwargs.get("metadata") or {}).get("thread_id")
        if thread is not None and self._around is not None:
            self._around.note_thread(thread)
        # LangChain does not know the input of what it streams yet.
        if kwargs.get("run_type") == "parser" and inputs == {"input": ""}:
            self._parsing.add(run_id)

    @override
    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._reason = self._reason or why_ended_early(outputs)
        if run_id in self._parsing:
            # A parser that passes texts on returns the same for the whole.
            read = kwargs.get("inputs")
            text = read.text if isinstance(read, BaseMessage) else read
            self.grew = self.grew or not (isinstance(outputs, str) and outputs == text)

    @property
    def searched(self) -> bool:
        """Whether the chain retrieved documents itself."""
        return bool(self._documents)

    def only(self, documents: frozenset[Any]) -> bool:
        """Whether these are what was retrieved, each time."""
        return bool(self._documents) and all(
            identities_of(retrieved) == documents for retrieved in self._documents
        )

    def told(self) -> str:
        """Say in words what was retrieved."""
        if not self._documents:
            return "nothing that its callbacks report"
        return " and ".join(f"{len(documents)} documents" for documents in self._documents)


def _why_no_generation(generation: Generation) -> str | None:
    reason = unfinished(generation.generation_info)
    message = getattr(generation, "message", None)
    if isinstance(message, BaseMessage):
        return reason or why_no_message(message)
    return reason or ("its model said nothing" if is_blank(generation.text) else None)


def identities_of(documents: list[Document]) -> frozenset[Any] | None:
    """Return which documents these are; ``None`` where one can't be compared."""
    found = [
        document_identity(document.id, document.page_content, document.metadata)
        for document in documents
    ]
    return None if None in found else frozenset(found)
