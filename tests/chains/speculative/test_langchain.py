"""SpeculativeRAG on the real engine: the plain chain's answers, whatever was guessed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import pytest
from blockbuster import blockbuster_ctx
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough

from ragcache_integrations.chains.speculative.langchain import SpeculativeRAG
from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.llms.langchain.models import ChatRAGCache, RAGCacheLLM
from ragcache_integrations.speculation import SpeculationReport
from tests.chains.scripted import TEXTS, Plain, Scripted, check_idle, documents, events
from tests.speculation.doubles import assert_no_threads

pytestmark = pytest.mark.engine

PROMPT = ChatPromptTemplate.from_messages(
    [("system", "Answer from the passages."), ("human", "{context}\n\nQuestion: {input}")]
)
QUESTION = "what do they say"


@pytest.fixture
def model(engine: RAGCacheEngine) -> ChatRAGCache:
    return ChatRAGCache(engine=engine, max_tokens=6)


@pytest.fixture(autouse=True)
def _nothing_is_left(engine: RAGCacheEngine) -> Iterator[None]:
    yield
    check_idle(engine)
    assert_no_threads()


def plain_answer(names: str, llm: Runnable[Any, Any], prompt: Any = PROMPT) -> str:
    """What the usual chain answers."""
    context = "\n\n".join(TEXTS[name] for name in names)
    answer: str = (prompt | llm | StrOutputParser()).invoke({"context": context, "input": QUESTION})
    return answer


def made(llm: Runnable[Any, Any], *plan: str, **arguments: Any) -> SpeculativeRAG:
    return SpeculativeRAG(retriever=Scripted(plan=list(plan)), llm=llm, prompt=PROMPT, **arguments)


@pytest.mark.parametrize(
    ("plan", "confirmed"),
    [
        (("ab", "ab", "ab"), True),
        (("ab", "cd", "cd"), None),  # depends on how soon the second guess is admitted
        (("ab", "cd", "ef"), False),
        (("ab", "ba"), False),
        (("ab",), False),
    ],
)
class TestAnswers:
    def test_they_are_those_of_the_plain_chain(
        self, model: ChatRAGCache, plan: tuple[str, ...], confirmed: bool | None
    ) -> None:
        result = made(model, *plan).invoke(QUESTION)
        assert result["answer"] == plain_answer(plan[-1], model)
        assert result["context"] == documents(plan[-1])
        assert result["input"] == QUESTION
        report = result["speculation"]
        assert isinstance(report, SpeculationReport)
        assert report.stages == len(plan)
        assert report.guesses > 0 or len(plan) == 1
        assert report.aborted == report.guesses - report.confirmed
        # The second guess may be confirmed although the search had ended when it was admitted.
        assert report.confirmed or report.overlapped_seconds == 0
        assert report.overlapped_seconds > 0 or not confirmed
        assert confirmed in {report.confirmed, None}

    def test_an_earlier_output_may_be_the_input(
        self, model: ChatRAGCache, plan: tuple[str, ...], confirmed: bool | None
    ) -> None:
        chain = made(model, *plan)
        again = chain.invoke({**chain.invoke(QUESTION), "user": "Ada"})
        assert again["answer"] == plain_answer(plan[-1], model)
        assert again["context"] == documents(plan[-1])
        assert again["speculation"].stages == len(plan)
        assert again["user"] == "Ada"

    async def test_async_ones_too(
        self, model: ChatRAGCache, plan: tuple[str, ...], confirmed: bool | None
    ) -> None:
        result = await made(model, *plan).ainvoke({"input": QUESTION})
        assert result["answer"] == plain_answer(plan[-1], model)
        assert result["context"] == documents(plan[-1])
        assert confirmed in {result["speculation"].confirmed, None}


@pytest.mark.parametrize("plan", [("ab", "ab", "ab"), ("ab", "cd", "cd")])
def test_penalties_count_the_answer_that_was_begun_early(
    model: ChatRAGCache, plan: tuple[str, ...]
) -> None:
    penalised = model.bind(frequency_penalty=-2.0, presence_penalty=-1.0, max_tokens=20)
    expected = plain_answer(plan[-1], penalised)
    assert expected != plain_answer(plan[-1], model.bind(max_tokens=20))
    assert made(penalised, *plan).invoke(QUESTION)["answer"] == expected


class TestStreams:
    async def test_they_bring_documents_then_the_answer_then_the_report(
        self, model: ChatRAGCache
    ) -> None:
        chain = made(model, "ab", "cd", "cd")
        expected = plain_answer("cd", model)
        for pieces in (
            list(chain.stream({"input": QUESTION})),
            [piece async for piece in chain.astream({"input": QUESTION})],
        ):
            assert all(len(piece) == 1 for piece in pieces)
            names = [next(iter(piece)) for piece in pieces]
            answers = len(pieces) - 3
            assert names == ["input", "context", *["answer"] * answers, "speculation"]
            assert answers > 1
            assert "".join(piece.get("answer", "") for piece in pieces) == expected

    def test_a_consumer_that_stops_reading(self, model: ChatRAGCache) -> None:
        long = model.bind(max_tokens=2000, ignore_eos=True)
        for stop in range(6):
            stream = made(long, "ab", "cd", "cd").stream(QUESTION)
            for _ in range(stop):
                next(stream)
            stream.close()  # type: ignore[attr-defined] # it is a generator

    async def test_an_async_consumer_that_stops_reading(self, model: ChatRAGCache) -> None:
        long = model.bind(max_tokens=2000, ignore_eos=True)
        for stop in range(6):
            stream: Any = made(long, "ab", "cd", "cd").astream(QUESTION)
            async with aclosing(stream):
                for _ in range(stop):
                    await anext(stream)


class TestFaults:
    @pytest.mark.parametrize("plan", [("!",), ("ab", "!"), ("ab", "ab", "!")])
    async def test_a_search_that_raises(self, model: ChatRAGCache, plan: tuple[str, ...]) -> None:
        chain = made(model, *plan, "ab")
        with pytest.raises(ConnectionError, match="the search broke"):
            chain.invoke(QUESTION)
        with pytest.raises(ConnectionError, match="the search broke"):
            await chain.ainvoke(QUESTION)

    async def test_cancelling_at_any_time(
        self, model: ChatRAGCache, engine: RAGCacheEngine
    ) -> None:
        long = model.bind(max_tokens=40, ignore_eos=True)
        expected = plain_answer("cd", long)
        chain = made(long, "ab", "cd", "cd")
        for number in range(14):
            task = asyncio.create_task(chain.ainvoke(QUESTION))
            await asyncio.sleep(0.01 * number)
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                assert task.result()["answer"] == expected
        assert asyncio.all_tasks() == {asyncio.current_task()}

    async def test_a_prompt_that_is_too_long(self, engine: RAGCacheEngine) -> None:
        model = ChatRAGCache(engine=engine, max_tokens=4)
        text = "word " * (engine.max_model_len + 10)
        retriever: Any = RunnableLambda(lambda _: [Document(text)])
        chain = SpeculativeRAG(retriever=retriever, llm=model, prompt=PROMPT)
        plain = PROMPT | model
        for ask in (chain.invoke, lambda given: list(chain.stream(given))):
            with pytest.raises(Exception, match="are allowed") as ours:
                ask(QUESTION)
            with pytest.raises(Exception, match="are allowed") as theirs:
                plain.invoke({"input": QUESTION, "context": text})
            assert type(ours.value) is type(theirs.value)
        with pytest.raises(type(theirs.value), match="are allowed"):
            await chain.ainvoke(QUESTION)


class TestRetrievers:
    async def test_an_ordinary_one_has_one_stage_and_no_guesses(self, model: ChatRAGCache) -> None:
        expected = plain_answer("ab", model)
        retrievers: list[Any] = [Plain(names="ab"), RunnableLambda(lambda _: documents("ab"))]
        for retriever in retrievers:
            chain = SpeculativeRAG(retriever=retriever, llm=model, prompt=PROMPT)
            for result in (chain.invoke(QUESTION), await chain.ainvoke(QUESTION)):
                assert result["answer"] == expected
                report = result["speculation"]
                assert (report.stages, report.guesses) == (1, 0)

    @pytest.mark.parametrize(("fast", "confirmed"), [("ab", True), ("cd", False)])
    async def test_a_fast_one_is_guessed_from(
        self, model: ChatRAGCache, fast: str, confirmed: bool
    ) -> None:
        chain = SpeculativeRAG(
            retriever=Plain(names="ab", wait=0.4), first=Plain(names=fast), llm=model, prompt=PROMPT
        )
        expected = plain_answer("ab", model)
        for result in (chain.invoke(QUESTION), await chain.ainvoke(QUESTION)):
            assert result["answer"] == expected
            assert result["context"] == documents("ab")
            assert result["speculation"].guesses == 1
            assert confirmed in {result["speculation"].confirmed, None}

    def test_a_fast_one_that_fails_does_no_harm(self, model: ChatRAGCache) -> None:
        chain = SpeculativeRAG(
            retriever=Plain(names="ab", wait=0.2),
            first=Plain(names="cd", error=True),
            llm=model,
            prompt=PROMPT,
        )
        result = chain.invoke(QUESTION)
        assert result["answer"] == plain_answer("ab", model)
        assert result["speculation"].guesses == 0

    @pytest.mark.parametrize("missing", ["stages", "astages"])
    async def test_one_may_have_stages_for_one_kind_of_callers(
        self, model: ChatRAGCache, missing: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delattr(Scripted, missing)
        chain = made(model, "ab", "ab")
        stages = [
            result["speculation"].stages
            for result in (chain.invoke(QUESTION), await chain.ainvoke(QUESTION))
        ]
        assert stages == ([1, 2] if missing == "stages" else [2, 1])

    def test_a_bound_one_keeps_its_stages(self, model: ChatRAGCache) -> None:
        retriever = Scripted(plan=["ab", "ab"]).with_config(tags=["mine"])
        chain = SpeculativeRAG(retriever=retriever, llm=model, prompt=PROMPT)
        assert chain.invoke(QUESTION)["speculation"].stages == 2

    def test_stages_are_asked_to_take_as_long_as_a_prefill_at_most(
        self, engine: RAGCacheEngine, model: ChatRAGCache
    ) -> None:
        retriever = Scripted(plan=["ab", "ab"])
        chain = SpeculativeRAG(retriever=retriever, llm=model, prompt=PROMPT, stage_interval=1e-4)
        for _ in range(3):
            chain.invoke(QUESTION)
        assert retriever.intervals == [1e-4] * 3


class TestModels:
    def test_bound_arguments_and_those_of_the_call(self, engine: RAGCacheEngine) -> None:
        model = ChatRAGCache(engine=engine, max_tokens=50)
        bound = model.bind(max_tokens=4, ignore_eos=True)
        chain = made(bound, "ab", "ab")
        assert chain.invoke(QUESTION)["answer"] == plain_answer("ab", bound)
        longer = plain_answer("ab", model.bind(max_tokens=9, ignore_eos=True))
        assert chain.invoke(QUESTION, max_tokens=9)["answer"] == longer
        with pytest.raises(ConfigurationError, match="unknown argument 'maximum'"):
            chain.invoke(QUESTION, maximum=9)

    async def test_a_text_model(self, engine: RAGCacheEngine) -> None:
        llm = RAGCacheLLM(engine=engine, max_tokens=6)
        prompt = PromptTemplate.from_template("{context}\n\n{input}")
        chain = SpeculativeRAG(retriever=Scripted(plan=["ab", "cd", "cd"]), llm=llm, prompt=prompt)
        expected = plain_answer("cd", llm, prompt)
        assert chain.invoke(QUESTION)["answer"] == expected
        assert (await chain.ainvoke(QUESTION))["answer"] == expected

    async def test_any_other_model_answers_afterwards_which_is_said_once(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        model = FakeListChatModel(responses=["yes"])
        chain = made(model, "ab", "cd", "cd")
        with caplog.at_level(logging.WARNING, "ragcache_integrations"):
            results = [chain.invoke(QUESTION), await chain.ainvoke(QUESTION)]
            streamed = list(chain.stream(QUESTION))
        for result in results:
            assert (result["answer"], result["speculation"]) == ("yes", None)
            assert result["context"] == documents("cd")
        assert "".join(piece.get("answer", "") for piece in streamed) == "yes"
        (warning,) = caplog.records
        assert warning.message == (
            "FakeListChatModel does not run on an engine of this process: answers begin when the "
            "search has ended"
        )

    def test_without_speculation(self, model: ChatRAGCache) -> None:
        report = made(model, "ab", "ab", speculate=False).invoke(QUESTION)["speculation"]
        assert (report.guesses, report.confirmed) == (0, False)
        assert "submitted" in events(report)

    def test_documents_keep_their_kv_caches(
        self, engine: RAGCacheEngine, model: ChatRAGCache
    ) -> None:
        engine.reset_cache()
        chain = made(model, "ab", "ab")
        chain.invoke(QUESTION)
        tree = engine.tree()
        assert tree is not None
        assert "'a'" in str(tree.as_dict())


class TestPrompts:
    def test_the_input_s_other_variables_reach_the_prompt(self, model: ChatRAGCache) -> None:
        prompt = ChatPromptTemplate.from_template("{style}: {passages} {question}")
        chain = SpeculativeRAG(
            retriever=Scripted(plan=["ab"]),
            llm=model,
            prompt=prompt,
            input_key="question",
            document_variable_name="passages",
        )
        given = {"question": QUESTION, "style": "short"}
        result = chain.invoke(given)
        context = f"{TEXTS['a']}\n\n{TEXTS['b']}"
        expected = (prompt | model).invoke({**given, "passages": context})
        assert result["answer"] == expected.text
        assert {name: result[name] for name in given} == given
        with pytest.raises(ConfigurationError, match="the prompt wants style, the input has que"):
            chain.invoke(QUESTION)

    def test_how_documents_stand_in_it(self, model: ChatRAGCache) -> None:
        chain = made(
            model,
            "ab",
            document_prompt=PromptTemplate.from_template("<{page_content}>"),
            document_separator="|",
        )
        context = f"<{TEXTS['a']}>|<{TEXTS['b']}>"
        expected = (PROMPT | model).invoke({"input": QUESTION, "context": context})
        assert chain.invoke(QUESTION)["answer"] == expected.text

    @pytest.mark.parametrize("given", [None, 3, {"question": "why"}, ["why"]])
    def test_other_inputs_are_refused(self, model: ChatRAGCache, given: Any) -> None:
        with pytest.raises(ConfigurationError, match="must be a string, or a dict with 'input'"):
            made(model, "ab").invoke(given)

    def test_no_documents(self, model: ChatRAGCache) -> None:
        result = made(model, "").invoke(QUESTION)
        assert result["context"] == []
        assert result["answer"] == plain_answer("", model)

    def test_the_default_prompt(self, model: ChatRAGCache) -> None:
        chain = SpeculativeRAG(retriever=Scripted(plan=["ab"]), llm=model)
        assert chain.invoke(QUESTION)["context"] == documents("ab")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"speculation": True}, "unknown argument 'speculation': allowed are .*speculate"),
        ({"speculate": "yes"}, "speculate"),
        ({"max_prefill_bs": 0}, "max_prefill_bs must be .*at least 1, or None, got 0"),
        ({"max_prefill_bs": 1.5}, "max_prefill_bs"),
        ({"stage_interval": 0}, "stage_interval must be .*above 0, or None, got 0"),
        ({"stage_interval": float("nan")}, "stage_interval"),
        ({"document_variable_name": "documents"}, "documents as 'documents', it takes context"),
        ({"llm": "model"}, "llm"),
        ({"prompt": "{context}"}, "^prompt must be one of LangChain's .*, got '{context}'"),
    ],
)
def test_wrong_knobs_are_refused(
    model: ChatRAGCache, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SpeculativeRAG(
            **{"retriever": Plain(names="ab"), "llm": model, "prompt": PROMPT, **arguments}
        )


class Runs(BaseCallbackHandler):
    """Which runs there were, by name, kind and parent's name; and the tokens told."""

    def __init__(self) -> None:
        self.names: dict[Any, str] = {}
        self.seen: list[tuple[str, str | None]] = []
        self.ended: list[str] = []
        self.failed: list[str] = []
        self.tokens: list[str] = []

    def _start(self, kind: str, kwargs: dict[str, Any]) -> None:
        self.names[kwargs["run_id"]] = kind
        self.seen.append((kind, self.names.get(kwargs.get("parent_run_id"))))

    def on_chain_start(self, *args: Any, **kwargs: Any) -> None:
        self._start(kwargs["name"], kwargs)

    def on_retriever_start(self, *args: Any, **kwargs: Any) -> None:
        self._start(kwargs["name"], kwargs)

    def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
        self._start("model", kwargs)

    def on_llm_new_token(self, token: Any, **kwargs: Any) -> None:
        self.tokens.append(token)

    def on_llm_end(self, response: Any, **kwargs: Any) -> None:
        self.ended.append("model")

    def on_chain_end(self, outputs: Any, **kwargs: Any) -> None:
        self.ended.append(self.names[kwargs["run_id"]])

    def on_chain_error(self, error: BaseException, **kwargs: Any) -> None:
        self.failed.append(self.names[kwargs["run_id"]])


class TestRunnable:
    async def test_callbacks_see_retriever_and_model_below_the_chain(
        self, model: ChatRAGCache
    ) -> None:
        chain = SpeculativeRAG(retriever=Plain(names="ab"), llm=model, prompt=PROMPT)
        expected = [("SpeculativeRAG", None), ("Plain", "SpeculativeRAG")]
        expected.append(("model", "SpeculativeRAG"))
        for ask in ("invoke", "ainvoke", "stream", "astream"):
            runs = Runs()
            config: Any = {"callbacks": [runs]}
            if ask == "invoke":
                answer = chain.invoke(QUESTION, config)["answer"]
            elif ask == "ainvoke":
                answer = (await chain.ainvoke(QUESTION, config))["answer"]
            elif ask == "stream":
                answer = "".join(one.get("answer", "") for one in chain.stream(QUESTION, config))
            else:
                pieces = [one async for one in chain.astream(QUESTION, config)]
                answer = "".join(piece.get("answer", "") for piece in pieces)
            assert runs.seen == expected, ask
            assert runs.ended == ["model", "SpeculativeRAG"], ask
            assert "".join(runs.tokens) == answer, ask

    def test_an_error_fails_the_run(self, model: ChatRAGCache) -> None:
        runs = Runs()
        with pytest.raises(ConnectionError):
            made(model, "ab", "!", "ab").invoke(QUESTION, {"callbacks": [runs]})
        assert runs.failed == ["SpeculativeRAG"]

    async def test_it_fits_into_other_chains(self, model: ChatRAGCache) -> None:
        chain = (
            {"input": RunnablePassthrough()}
            | made(model, "ab", "cd", "cd").with_config(run_name="mine", tags=["tag"])
            | RunnableLambda(lambda result: result["answer"])
        )
        expected = plain_answer("cd", model)
        runs = Runs()
        assert chain.invoke(QUESTION, {"callbacks": [runs]}) == expected
        assert "mine" in {name for name, _ in runs.seen}
        assert await chain.ainvoke(QUESTION) == expected

    async def test_batches_answer_each_question(self, model: ChatRAGCache) -> None:
        chain = made(model, "ab", "cd", "cd")
        questions: list[Any] = [f"{QUESTION} {number}" for number in range(4)]
        expected = [chain.invoke(question)["answer"] for question in questions]
        assert [one["answer"] for one in chain.batch(questions)] == expected
        assert [one["answer"] for one in await chain.abatch(questions)] == expected

    async def test_events_of_the_stream(self, model: ChatRAGCache) -> None:
        chain = made(model, "ab", "ab")
        kinds = [event["event"] async for event in chain.astream_events(QUESTION, version="v2")]
        assert kinds.count("on_chat_model_stream") > 1
        assert kinds[-1] == "on_chain_end"

    async def test_nothing_blocks_the_event_loop(self, model: ChatRAGCache) -> None:
        chain = SpeculativeRAG(
            retriever=Scripted(plan=["ab", "cd", "cd"]), llm=model, prompt=PROMPT
        )
        with blockbuster_ctx(scanned_modules=["ragcache_integrations"]):
            assert (await chain.ainvoke(QUESTION))["answer"]

    def test_threads_share_one_speculator(
        self, engine: RAGCacheEngine, model: ChatRAGCache
    ) -> None:
        chains = [made(model, "ab", "cd"), made(ChatRAGCache(engine=engine, max_tokens=3), "ab")]
        first, second = (chain._speculators.get() for chain in chains)
        assert first is second is not None
        other = made(model, "ab", max_prefill_bs=2)._speculators.get()
        assert other is not first
