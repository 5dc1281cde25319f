"""Questions whose words differ only in case, marks or forms of characters.

Where those carry meaning, neither answers nor results of tools are shared, not even with the
tolerance 0. Where they cannot, they still are.
"""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Callable
from typing import Any, TypedDict

import pytest
from langchain_core.tools import tool
from langgraph.graph import START, StateGraph
from llama_index.core.tools import FunctionTool

from ragcache_integrations import langchain, llama_index
from tests.attacks.faces import (
    ANSWER_FACES,
    LLAMA_INDEX_EMBEDDINGS,
    Ask,
    Pair,
    answered_for_another,
)

# A warning that the embedding model can't read a symbol is right, and not what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

DIFFERENT = [
    # Options of commands.
    Pair("what does docker run -p do", "what does docker run -P do", "one port, all ports"),
    Pair("what does git branch -d do", "what does git branch -D do", "only merged ones, any"),
    Pair("what does ls -a show", "what does ls -A show", "with and without . and .."),
    Pair("what does curl -i print", "what does curl -I print", "the head and all, the head"),
    Pair("what is sort -r for", "what is sort -R for", "backwards, shuffled"),
    Pair("what does the key g do in less", "what does the key G do in less", "begin, end"),
    Pair("what does x do in vim", "what does X do in vim", "deletes after, before"),
    # Formats and classes.
    Pair("what is %y in strftime", "what is %Y in strftime", "two digits, four"),
    Pair("what does date +%h print", "what does date +%H print", "month, hour"),
    Pair(r"what does the pattern \s match", r"what does the pattern \S match", "the opposite"),
    Pair("what is hh in SimpleDateFormat", "what is HH in SimpleDateFormat", "12 and 24 hours"),
    # Units and formulas.
    Pair("How much is 10 mN?", "How much is 10 MN?", "milli- and meganewton"),
    Pair("How long is 3 ms?", "How long is 3 Ms?", "millisecond, megasecond"),
    Pair("Is a current of 8 pA large?", "Is a current of 8 PA large?", "pico, peta"),
    Pair("what does 16 Gb of memory cost", "what does 16 GB of memory cost", "bit, byte"),
    Pair("is Cs poisonous", "is CS poisonous", "caesium, tear gas"),
    Pair("What is the density of Ni?", "What is the density of NI?", "nickel, radical"),
    Pair("What is Pb used for?", "What is PB used for?", "lead, polybutylene"),
    # Names and abbreviations.
    Pair("Is Mercury a liquid?", "Is mercury a liquid?", "planet, metal"),
    Pair("how fast is a Jaguar", "how fast is a jaguar", "car, animal"),
    Pair("how do I clean Windows", "how do I clean windows", "program, panes"),
    Pair("who can help US", "who can help us", "country, we"),
    Pair("how do I remove SAP", "how do I remove sap", "program, resin"),
    Pair("where do I enter my PIN", "where do I enter my pin", "number, needle"),
    Pair("when was the Sun founded", "when was the sun founded", "newspaper, star"),
    Pair("US holidays in May", "us holidays in May", "of the country"),
    Pair("Wann haben Sie geöffnet?", "Wann haben sie geöffnet?", "you, they"),
    Pair("Was steht auf den Bußen?", "Was steht auf den Bussen?", "fines, buses"),
    Pair("¿Cuántos años tiene?", "¿Cuántos anos tiene?", "years, another word"),
    # Code.
    Pair("what does obj.Count return", "what does obj.count return", "property, method"),
    Pair("where is MAX_size defined", "where is MAX_SIZE defined", "two names"),
    Pair("what does _init mean in Python", "what does __init mean in Python", "mangled"),
    Pair("In Ruby, what does name.upcase! return", "In Ruby, what does name.upcase return", "nil"),
    Pair("In Swift, what is String?", "In Swift, what is String!", "optional, unwrapped"),
    Pair("In Bash, what is $?", "In Bash, what is $!", "status, process"),
    Pair("In Bash, what is &&", "In Bash, what is ||", "and, or"),
    Pair("explain docker build .", "explain docker build", "needs a folder"),
    Pair("explain cd ~", "explain cd -", "home, the folder before"),
    Pair("explain the pattern .*", "explain the pattern .*?", "greedy, lazy"),
    Pair("what is .env", "what is env", "file, program"),
    Pair("-v in pip", "v in pip", "an option"),
    Pair("explain $HOME", "explain HOME", "a variable"),
    Pair(
        "Is this right:\nif a:\n    b()\nc()", "Is this right:\nif a:\n    b()\n    c()", "indent"
    ),
    Pair("Is this one table?\na: 1\nb: 2", "Is this one table?\na: 1 b: 2", "lines in YAML"),
    # Symbols.
    Pair("how much is 5!", "how much is 5", "factorial"),
    Pair("how much is 7²", "how much is 72", "square"),
    Pair("How many zeros has 10⁵?", "How many zeros has 105?", "a power"),
    Pair("What is 1½ minus 1?", "What is 11\u20442 minus 1?", "one and a half, eleven halves"),
    Pair("How large is a rise of 5 %?", "How large is a rise of 5 ‰?", "per cent, per mille"),
    Pair("Which score is an A+?", "Which score is an A-?", "grades"),
    Pair("who may give blood to O+", "who may give blood to O-", "blood groups"),
    Pair("what does this mean: :)", "what does this mean: :(", "smile, frown"),
    Pair("what are the prices in €", "what are the prices in £", "currencies"),
    Pair(
        "how large is an angle of 30\u2032", "how large is an angle of 30\u2033", "minutes, seconds"
    ),
    Pair("which hotels have ★★★★", "which hotels have ★★★", "stars"),
    Pair("what is the scale of C♯", "what is the scale of C♭", "sharp, flat"),
    Pair("who made C", "who made C++", "two languages"),
    Pair("how warm is -40", "how warm is 40", "the sign"),
]

SAME = [
    Pair("How do I reset the alarm?", "how do I reset the alarm?", "a sentence's first letter"),
    Pair("where is my parcel?", "where is my parcel", "question mark"),
    Pair("Where is my parcel?", "where is my parcel", "both"),
    Pair("Tell me the price of the blue chair.", "Tell me the price of the blue chair", "dot"),
    Pair("where is  my   parcel", "where is my parcel", "spaces between words"),
    Pair("  where is my parcel ", "where is my parcel", "spaces around"),
    Pair("where is my parcel\n", "where is my parcel", "end of line"),
    Pair("where\u00a0is my parcel", "where is my parcel", "no-break space"),
    Pair("what\u2019s the price of the chair", "what's the price of the chair", "curly apostrophe"),
    Pair("où est le café", unicodedata.normalize("NFD", "où est le café"), "NFD"),
    Pair("wo ist der schlüssel", unicodedata.normalize("NFD", "wo ist der schlüssel"), "NFD"),
    Pair("Où est le café\u202f?", "Où est le café ?", "narrow no-break space"),
    Pair("how much is 5 \u2126", "how much is 5 \u03a9", "ohm sign and omega are one letter"),
    Pair("Wo ist mein Paket?", "wo ist mein Paket", "German"),
    Pair("\twhere is my parcel\r\n", "where is my parcel", "tab, end of line"),
    Pair("Is my order on its way?", "is my order on its way", "first letter, mark"),
    Pair("¿dónde está el cajón?", unicodedata.normalize("NFD", "¿dónde está el cajón?"), "NFD"),
]


@pytest.mark.parametrize("knobs", [{"tolerance": 0}, {}], ids=["zero", "defaults"])
@pytest.mark.parametrize("face", ANSWER_FACES)
class TestAnswers:
    def test_other_questions_get_answers_of_their_own(
        self, face: str, knobs: dict[str, Any]
    ) -> None:
        assert answered_for_another(ANSWER_FACES[face], DIFFERENT, **knobs) == []

    def test_the_order_of_asking_does_not_matter(self, face: str, knobs: dict[str, Any]) -> None:
        turned = [Pair(other, one, why) for one, other, why in DIFFERENT]
        assert answered_for_another(ANSWER_FACES[face], turned, **knobs) == []

    def test_the_same_question_is_still_served(self, face: str, knobs: dict[str, Any]) -> None:
        served = answered_for_another(ANSWER_FACES[face], SAME, **knobs)
        assert [pair for pair in SAME if pair not in served] == []


def _langchain_tool() -> tuple[Ask, Ask]:
    @tool
    def search(query: str) -> str:
        """Search."""
        return f"result for {query}"

    cached = langchain.cached_tool(search, query_argument="query")
    return (
        lambda question: cached.invoke({"query": question}),
        lambda question: asyncio.run(cached.ainvoke({"query": question})),
    )


def _llama_index_tool() -> tuple[Ask, Ask]:
    def search(query: str) -> str:
        """Search."""
        return f"result for {query}"

    cached = llama_index.cached_tool(
        FunctionTool.from_defaults(search),
        query_argument="query",
        embed_model=LLAMA_INDEX_EMBEDDINGS,
    )
    return (
        lambda question: str(cached.call(query=question).raw_output),
        lambda question: str(asyncio.run(cached.acall(query=question)).raw_output),
    )


class _State(TypedDict, total=False):
    question: str
    found: str


def _langgraph_node() -> tuple[Ask, Ask]:
    def look_up(state: _State) -> _State:
        return {"found": f"result for {state['question']}"}

    node = langchain.cached_node(look_up, reads=["question"], query_argument="question")
    graph = StateGraph(_State).add_node("search", node).add_edge(START, "search").compile()
    return (
        lambda question: str(graph.invoke({"question": question})["found"]),
        lambda question: str(asyncio.run(graph.ainvoke({"question": question}))["found"]),
    )


@pytest.mark.parametrize("make", [_langchain_tool, _llama_index_tool, _langgraph_node])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
class TestSteps:
    def test_other_queries_get_results_of_their_own(
        self, make: Callable[[], tuple[Ask, Ask]], asynchronous: bool
    ) -> None:
        assert self._shared(make, asynchronous, DIFFERENT) == []

    def test_the_same_query_is_still_served(
        self, make: Callable[[], tuple[Ask, Ask]], asynchronous: bool
    ) -> None:
        shared = self._shared(make, asynchronous, SAME)
        assert [pair for pair in SAME if pair not in shared] == []

    def _shared(
        self, make: Callable[[], tuple[Ask, Ask]], asynchronous: bool, pairs: list[Pair]
    ) -> list[Pair]:
        shared = []
        for pair in pairs:
            ask = make()[asynchronous]
            first, second = ask(pair.one), ask(pair.other)
            assert first == f"result for {pair.one}"
            assert second in (first, f"result for {pair.other}")
            if first == second:
                shared.append(pair)
        return shared
