"""Whose documents a prompt is searched for: those of its own request, and no others."""

from __future__ import annotations

import asyncio
import contextvars
import random
import threading
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ragcache_integrations.engine import Prompt, PromptDocument
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.recognition import requests as module
from ragcache_integrations.prompts.recognition.requests import UNKNOWN, Requests
from ragcache_integrations.resources import load_passages

TEXTS = [passage.text.strip() for passage in load_passages() if len(passage.text) > 100][:8]
FIRST, SECOND, THIRD, *_ = TEXTS
ALL = Prompt.raw("\n".join(TEXTS))


def seen(requests: Requests, run: Hashable | None = None, namespace: str = "") -> list[str]:
    return [document.text for document in requests.mark(ALL, run, namespace).documents]


def retrieve(
    requests: Requests, run: str, *texts: str, parent: str | None = None, namespace: str = ""
) -> None:
    requests.begin(run, parent)
    requests.set_namespace(run, namespace)
    requests.remember(run, [(None, text) for text in texts])
    requests.end(run)


# Within a request


def test_every_run_of_a_request_sees_what_any_of_them_retrieved() -> None:
    requests = Requests()
    requests.begin("graph")
    requests.begin("node", "graph")
    retrieve(requests, "tool", FIRST, parent="node")
    requests.end("node")
    requests.begin("answer", "graph")
    retrieve(requests, "beside", SECOND, parent="answer")
    assert seen(requests, "answer") == seen(requests, "graph") == [FIRST, SECOND]


def test_no_request_sees_another() -> None:
    requests = Requests()
    for name, text in (("a", FIRST), ("b", SECOND)):
        requests.begin(name)
        retrieve(requests, f"{name}'s", text, parent=name)
    requests.begin("c")
    assert [seen(requests, name) for name in "abc"] == [[FIRST], [SECOND], []]
    assert seen(requests) == []


@pytest.mark.parametrize("failed", [False, True])
def test_what_served_or_failed_is_forgotten(failed: bool) -> None:
    requests = Requests()
    requests.begin("a")
    retrieve(requests, "its", FIRST, parent="a")
    if not failed:
        assert seen(requests, "a") == [FIRST]
    requests.end("a", failed=failed)
    assert len(requests) == 0
    assert seen(requests) == []


def test_documents_of_another_namespace_are_not_seen() -> None:
    requests = Requests()
    requests.begin("a")
    retrieve(requests, "tenant's", FIRST, parent="a", namespace="tenant")
    retrieve(requests, "other's", SECOND, parent="a", namespace="other")
    retrieve(requests, "foreign", THIRD, parent="a")
    assert seen(requests, "a", "tenant") == [FIRST, THIRD]
    assert seen(requests, "a", "other") == [SECOND, THIRD]
    assert seen(requests, "a") == [THIRD]


def test_a_run_that_began_before_anyone_listened() -> None:
    requests = Requests()
    retrieve(requests, "retriever", FIRST, parent="unheard of")
    assert seen(requests, "unheard of") == [FIRST]
    assert seen(requests, "another") == []


def test_a_run_that_cannot_be_told_sees_nothing() -> None:
    requests = Requests()
    retrieve(requests, "retriever", FIRST)
    assert seen(requests, UNKNOWN) == []
    requests.remember("never begun", [(None, SECOND)])
    assert seen(requests) == [FIRST]


def test_two_texts_with_one_id() -> None:
    requests = Requests()
    for name, text in (("a", FIRST), ("b", SECOND)):
        requests.begin(name)
        requests.remember(name, [("0", text)])
        requests.end(name)
    assert requests.mark(ALL, None, "").documents == (
        PromptDocument(FIRST, "0"),
        PromptDocument(SECOND),
    )


def test_runs_whose_end_never_comes_are_bounded() -> None:
    requests = Requests(max_runs=10)
    for number in range(100):
        requests.begin(number)
        requests.remember(number, [(None, FIRST)])
    assert len(requests) == 10
    assert seen(requests, 0) == []
    assert seen(requests, 99) == [FIRST]
    with pytest.raises(ConfigurationError, match="max_runs must be a whole number of at least 1"):
        Requests(0)


# Linked by the context


def test_a_script_retrieves_and_then_asks() -> None:
    requests = Requests()
    retrieve(requests, "a", FIRST)
    retrieve(requests, "b", SECOND)
    assert seen(requests) == [FIRST, SECOND]
    requests.begin("chain")  # of a prompt and a model
    assert seen(requests, "chain") == [FIRST, SECOND]
    requests.end("chain")
    assert seen(requests) == [FIRST, SECOND]


@pytest.mark.parametrize("retrieved_in", ["", "x", "y"])
@pytest.mark.parametrize("asked_in", ["", "x", "y"])
@pytest.mark.parametrize("within", ["nothing", "a chain", "no run"])
def test_the_context_links_calls_of_one_namespace(
    retrieved_in: str, asked_in: str, within: str
) -> None:
    """A thread that is used again for another tenant shows it nothing."""
    requests = Requests()
    if within == "no run":
        requests.remember(None, [(None, FIRST)])
        retrieved_in = ""
    elif within == "a chain":
        requests.begin("chain")
        retrieve(requests, "its", FIRST, parent="chain", namespace=retrieved_in)
        requests.end("chain")
    else:
        retrieve(requests, "bare", FIRST, namespace=retrieved_in)
    requests.begin("another chain")
    expected = [FIRST] if asked_in == retrieved_in else []
    assert seen(requests, "another chain", asked_in) == expected


def test_a_chain_that_is_over_is_served_once() -> None:
    """As by a stream that is read afterwards; then the thread may serve somebody else."""
    requests = Requests()
    requests.begin("query")
    retrieve(requests, "its", FIRST, parent="query")
    requests.end("query")
    assert seen(requests) == [FIRST]
    assert seen(requests) == []


def test_a_retrieval_after_an_answer_begins_a_new_request() -> None:
    requests = Requests()
    retrieve(requests, "a", FIRST)
    assert seen(requests) == [FIRST]
    retrieve(requests, "b", SECOND)
    assert seen(requests) == [SECOND]
    retrieve(requests, "c", THIRD)
    assert seen(requests) == [THIRD]


def test_a_chain_that_retrieves_sees_nothing_of_what_was_before() -> None:
    requests = Requests()
    retrieve(requests, "a", FIRST)
    requests.begin("chain")
    retrieve(requests, "its", SECOND, parent="chain")
    assert seen(requests, "chain") == [SECOND]


def test_what_is_still_under_way_is_not_seen_from_outside() -> None:
    requests = Requests()
    requests.begin("first of a batch")
    retrieve(requests, "its", FIRST, parent="first of a batch")
    requests.begin("second of a batch")
    assert seen(requests, "second of a batch") == seen(requests) == []
    requests.end("first of a batch")
    assert seen(requests) == [FIRST]


def test_documents_without_a_run_belong_to_the_context() -> None:
    requests = Requests()
    requests.remember(None, [(None, FIRST)])
    assert seen(requests) == [FIRST]
    assert contextvars.Context().run(seen, requests) == []


def test_neither_parent_nor_siblings_see_what_a_context_retrieves() -> None:
    requests = Requests()
    retrieve(requests, "warming up", FIRST)

    async def serve(name: str, text: str) -> list[str]:
        await asyncio.sleep(0)
        retrieve(requests, name, text)
        await asyncio.sleep(0)
        return seen(requests)

    async def main() -> list[list[str]]:
        return list(await asyncio.gather(serve("a", SECOND), serve("b", THIRD)))

    assert asyncio.run(main()) == [[FIRST, SECOND], [FIRST, THIRD]]
    assert seen(requests) == [FIRST]


def test_a_thread_that_serves_for_ever_keeps_little() -> None:
    requests = Requests()
    for number in range(100):
        retrieve(requests, f"a{number}", FIRST)
        requests.begin(f"chain{number}")
        assert seen(requests, f"chain{number}") == [FIRST]
        requests.end(f"chain{number}")
    assert len(requests) == 0
    kept = module._context.get()
    assert len(kept) <= module.MAX_EARLIER + 1
    assert not any(request.earlier for request in kept)


class Interleaved(RuleBasedStateMachine):
    """Requests in any order, and what each must see; the reference is a set for each request."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = Requests()
        self.documents: dict[str, set[tuple[str, str]]] = {}
        self.runs: dict[str, str] = {}
        self.count = 0

    def fresh(self) -> str:
        self.count += 1
        return f"run {self.count}"

    @rule()
    def begin(self) -> None:
        root = self.fresh()
        contextvars.Context().run(self.requests.begin, root)  # a thread or task of its own
        self.documents[root] = set()
        self.runs[root] = root

    @rule(pick=st.randoms(use_true_random=False))
    def nest(self, pick: random.Random) -> None:
        if self.runs:
            parent = pick.choice(sorted(self.runs))
            child = self.fresh()
            self.requests.begin(child, parent)
            self.runs[child] = self.runs[parent]

    @rule(
        pick=st.randoms(use_true_random=False),
        text=st.sampled_from(TEXTS),
        namespace=st.sampled_from(["", "x", "y"]),
    )
    def retrieve(self, pick: random.Random, text: str, namespace: str) -> None:
        if self.runs:
            parent = pick.choice(sorted(self.runs))
            retrieve(self.requests, self.fresh(), text, parent=parent, namespace=namespace)
            self.documents[self.runs[parent]].add((namespace, text))

    @rule(pick=st.randoms(use_true_random=False), failed=st.booleans())
    def end(self, pick: random.Random, failed: bool) -> None:
        if self.documents:
            root = pick.choice(sorted(self.documents))
            for run in [run for run, of in self.runs.items() if of == root]:
                self.requests.end(run, failed=failed)
                del self.runs[run]
            del self.documents[root]

    @invariant()
    def each_sees_its_own(self) -> None:
        for run, root in self.runs.items():
            for namespace in ("", "x", "y", "z"):
                own = {text for name, text in self.documents[root] if name in {"", namespace}}
                assert set(seen(self.requests, run, namespace)) == own
        assert len(self.requests) == len(self.runs)


TestInterleaved = Interleaved.TestCase


def test_from_many_threads_and_tasks_at_once() -> None:
    """Each request sees its own document, whatever the others do in between."""
    requests = Requests()
    begin = threading.Barrier(8)

    async def serve(name: str, text: str, rng: random.Random) -> list[str]:
        requests.begin(name)
        await asyncio.sleep(rng.random() / 1000)
        retrieve(requests, f"{name} retriever", text, parent=name, namespace=name[:8])
        await asyncio.sleep(rng.random() / 1000)
        found = seen(requests, name, name[:8])
        requests.end(name)
        return found

    async def many(worker: int) -> None:
        rng = random.Random(worker)
        texts = [rng.choice(TEXTS) for _ in range(100)]
        served = await asyncio.gather(
            *(serve(f"worker {worker} {n}", text, rng) for n, text in enumerate(texts))
        )
        assert served == [[text] for text in texts]

    def work(worker: int) -> None:
        begin.wait()
        asyncio.run(many(worker))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert len(requests) == 0
