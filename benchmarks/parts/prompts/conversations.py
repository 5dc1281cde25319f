"""Conversations about one source: QMSum's questions on one meeting, with the chunks they find.

Each meeting's questions are one conversation, in their own order and in others drawn at random, so
that 35 meetings give 105 conversations of the natural length. The chunks are pieces of the
transcript that overlap, as splitters cut them; a question finds those nearest to it. The history
has the right answers, so that every way of writing the prompt hears the same conversation.

- ``chat``: this turn's chunks and the question are one message of the user.
- ``agent``: the assistant calls a search, whose result is one message of a tool with all chunks.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from typing import Any, Literal

import numpy as np
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from parts.traffic.corpora import lexical_top_k
from parts.traffic.embedded import Embedder
from ragcache_integrations.langchain import (
    HalfTruncationHistory,
    RAGPromptTemplate,
    documents_once,
)
from ragcache_workbench.demo.apps import SYSTEM
from ragcache_workbench.evaluation.datasets import load_dataset

__all__ = [
    "Conversation",
    "Kind",
    "Question",
    "by_contextpilot",
    "chat_turns",
    "conversations",
    "repeated_searches",
    "turns_by_contextpilot",
]

Kind = Literal["chat", "agent"]
OF_MEETINGS = "Answer from the parts of a meeting's transcript, in a few sentences."


@dataclass(frozen=True)
class Question:
    """A question, its right answer, and the chunks that it finds, the nearest first."""

    text: str
    answer: str
    chunks: tuple[Document, ...]


@dataclass(frozen=True)
class Conversation:
    """The questions of one conversation.

    Attributes:
        meeting: Number of the meeting.
        questions: In the order in which they are asked.
        system: The system's turn.
    """

    meeting: int
    questions: tuple[Question, ...]
    system: str = OF_MEETINGS


def conversations(
    data: str, orders: int, k: int, characters: int, meetings: int | None
) -> list[Conversation]:
    """Read the meetings, and search them.

    Args:
        data: Folder of QMSum, or ``bundled``.
        orders: Conversations for each meeting.
        k: Chunks that a question finds.
        characters: Of a chunk; a fifth of them are the next one's, too.
        meetings: The most meetings; ``None`` for all.

    Returns:
        The questions' own order of all meetings, then the other orders.
    """
    qmsum = load_dataset("qmsum", data)
    transcripts: dict[str, list[str]] = defaultdict(list)
    for document in qmsum.documents:
        transcripts[document.id.rpartition("-")[0]].append(document.text)
    asked: dict[str, list[Any]] = defaultdict(list)
    for question in qmsum.questions:
        asked[question.group or ""].append(question)
    embed = Embedder()
    rng = np.random.default_rng(0)
    found = []
    for number, (name, questions) in enumerate(list(asked.items())[:meetings]):
        chunks = list(_chunks(name, "\n".join(transcripts[name]), characters))
        vectors = embed([chunk.page_content for chunk in chunks])
        nearest = vectors @ embed([q.text for q in questions]).T
        ready = [
            Question(q.text, q.answers[0], tuple(chunks[n] for n in np.argsort(-scores)[:k]))
            for q, scores in zip(questions, nearest.T, strict=True)
        ]
        for order in range(orders):
            places = rng.permutation(len(ready)) if order else range(len(ready))
            found.append(Conversation(number, tuple(ready[place] for place in places)))
    return [conversation for order in range(orders) for conversation in found[order::orders]]


def repeated_searches(data: str, count: int) -> list[Conversation]:
    """Conversations of two turns, of which the second finds exactly what the first has found.

    Both are questions of Natural Questions. The passages are those that answer them, and for each
    the best other one by keywords; each turn has them in its own order. So what answers the second
    question is only referred to, between what was found for another one.

    Args:
        data: Folder of Natural Questions, or ``bundled``.
        count: Conversations at most, 2 or more; each question with a passage that answers it is the
            second of one.
    """
    nq = load_dataset("nq", data)
    texts = {document.id: document.text for document in nq.documents}
    order = np.random.default_rng(0).permutation(len(nq.questions))
    answerable = [q for place in order if (q := nq.questions[place]).gold_documents][:count]
    found = lexical_top_k([question.text for question in answerable], texts, 4)
    talks = []
    for number, (question, names) in enumerate(zip(answerable, found, strict=True)):
        gold = question.gold_documents[0]
        before = (number - back for back in range(1, len(answerable)))  # from the end on, too
        place = next(p for p in before if answerable[p].gold_documents[0] != gold)
        other, other_names = answerable[place], found[place]
        other_gold = other.gold_documents[0]
        mixed = next(name for name in names if name not in {gold, other_gold})
        other_mixed = next(n for n in other_names if n not in {gold, other_gold, mixed})
        second = [gold, mixed, other_gold, other_mixed]
        first = [other_gold, other_mixed, gold, mixed]
        turns = tuple(
            Question(q.text, q.answers[0], tuple(Document(texts[n], id=n) for n in chosen))
            for q, chosen in ((other, first), (question, second))
        )
        talks.append(Conversation(number, turns, SYSTEM))
    return talks


def _chunks(name: str, text: str, characters: int) -> Iterator[Document]:
    """Overlapping chunks that begin and end between words."""
    begin = number = 0
    while begin < len(text):
        end = min(len(text), begin + characters)
        if end < len(text):
            end = max(text.rfind(" ", begin, end), text.rfind("\n", begin, end), begin + 1)
        yield Document(text[begin:end].strip(), id=f"{name}-{number}")
        if end == len(text):
            return
        begin, number = text.find(" ", end - characters // 5, end) + 1 or end, number + 1


def chat_turns(
    conversation: Conversation,
    kind: Kind,
    budget: int,
    count_tokens: Callable[[str], int],
    *,
    once: bool,
) -> list[list[BaseMessage]]:
    """The prompt of each turn, as an application with our template and history makes it.

    Args:
        conversation: What is asked.
        kind: How chunks reach the model.
        budget: Of the history, in tokens.
        count_tokens: Of the model.
        once: Whether documents are said once.
    """
    history = HalfTruncationHistory(budget, count_tokens=count_tokens, documents_once=once)
    template = RAGPromptTemplate(
        system=conversation.system,
        history="{history}",
        documents="{context}",
        query="Question: {question}\nAnswer:",
        documents_once=once,
    )
    prompts = []
    for number, question in enumerate(conversation.questions):
        if kind == "chat":
            values = {"context": list(question.chunks), "question": question.text}
            prompt = template.invoke({"history": history.messages, **values}).to_messages()
            new = [prompt[-1]]
        else:
            result = "\n\n".join(chunk.page_content for chunk in question.chunks)
            new = _search(number, question.text, result)
            prompt = [SystemMessage(conversation.system), *history.messages, *new]
            prompt = documents_once(prompt) if once else prompt
        prompts.append(prompt)
        history.add_messages([*new, AIMessage(question.answer)])
    return prompts


def turns_by_contextpilot(
    conversation: Conversation, kind: Kind, budget: int, count_tokens: Callable[[str], int]
) -> list[list[BaseMessage]]:
    """The prompt of each turn as ContextPilot's manager of conversations writes its documents.

    It compares ids, and hints at a document that an earlier turn had, also where the history has
    lost that turn. Arguments are those of :func:`chat_turns`.
    """
    manager = _contextpilot_manager()
    history = HalfTruncationHistory(budget, count_tokens=count_tokens)
    prompts: list[list[BaseMessage]] = []
    for number, question in enumerate(conversation.questions):
        corpus = {chunk.id: {"text": chunk.page_content} for chunk in question.chunks}
        context, _, _ = manager.deduplicate_context("chat", list(corpus), corpus)
        new: list[BaseMessage]
        if kind == "chat":
            new = [HumanMessage(f"{context}Question: {question.text}\nAnswer:")]
        else:
            new = _search(number, question.text, context.strip())
        prompts.append([SystemMessage(conversation.system), *history.messages, *new])
        history.add_messages([*new, AIMessage(question.answer)])
    return prompts


def _contextpilot_manager() -> Any:
    # Its package imports what only its pipelines need, and is not installed with it.
    package = find_spec("contextpilot")
    places = None if package is None else package.submodule_search_locations
    if not places:
        raise ModuleNotFoundError("contextpilot is not installed")
    path = Path(places[0]) / "pipeline" / "multi_turn.py"
    return run_path(str(path))["MultiTurnManager"]()


def _search(number: int, question: str, result: str) -> list[BaseMessage]:
    call = {"name": "search", "args": {"query": question}, "id": f"call-{number}"}
    return [
        HumanMessage(question),
        AIMessage("", tool_calls=[call]),
        ToolMessage(result, tool_call_id=call["id"]),
    ]


def by_contextpilot(prompt: Sequence[BaseMessage]) -> list[BaseMessage]:
    """The prompt as ContextPilot's own deduplication of a request leaves it.

    It compares blocks of lines in all messages; it is given the same messages of the same history.
    """
    from contextpilot.dedup import dedup_chat_completions  # noqa: PLC0415 - a peer, not always there

    roles = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool"}
    body: dict[str, Any] = {"messages": []}
    for message in prompt:
        turn: dict[str, Any] = {"role": roles[message.type], "content": str(message.text)}
        if isinstance(message, ToolMessage):
            turn |= {"tool_call_id": message.tool_call_id, "name": "search"}
        body["messages"].append(turn)
    dedup_chat_completions(body)
    shortened = []
    for message, turn in zip(prompt, body["messages"], strict=True):
        copied = copy.copy(message)
        copied.content = turn["content"]
        shortened.append(copied)
    return shortened
