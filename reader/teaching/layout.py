"""Pages as tokens: what the toolkit would send, and which token sees which.

Read **whole**, every token sees all before it. **Block by block** is what an engine computes that
reuses documents' KV caches anywhere: each document is encoded by itself and stands at its place;
system text, separators and the first tokens of each document (the links) are computed behind all
that stands before them, in place of those that were encoded; questions see the former, and of
documents what the links did not replace.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ragcache_integrations.core.prompt import Message, Prompt, PromptDocument, PromptRenderer

from .network import Packed, Stretch

__all__ = ["Layout", "Page", "Question"]

CHUNK = 256
"""Tokens of a stretch of what is read whole; nothing is computed for what comes after it."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked behind a page's documents.

    Attributes:
        text: The rest of the user's turn.
        answer: What is to be said.
        after: Turns between the documents and this question: what was asked behind the documents,
            and the answer, and so on.
    """

    text: str
    answer: str
    after: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """Documents, and questions about them, each of which is asked as if it were the only one.

    Attributes:
        documents: Their texts.
        questions: At least one.
        system: System text; empty for none.
        separator: Behind each document.
        links: Tokens of each document that are computed in place, where the page is read block by
            block; ``None`` where it is read whole.
    """

    documents: tuple[str, ...]
    questions: tuple[Question, ...]
    system: str = ""
    separator: str = "\n\n"
    links: int | None = None


class Layout:
    """Lays pages out for a network.

    Args:
        tokenizer: A transformers tokenizer with the chat template.
        longest: Tokens that may be shared; a page with more is left out.
        room: Tokens of all questions together, with their answers; those that do not fit are left
            out. Memory grows with both: 3 GB where both are reached.

    Attributes:
        most: Tokens of a page that is read whole, answers included.
        end: The token that ends an answer.
        decode: Turns tokens into text.
    """

    def __init__(self, tokenizer: object, longest: int = 1152, room: int = 448) -> None:
        self._renderer = PromptRenderer(tokenizer)  # type: ignore[arg-type]
        self._longest, self._room = longest, room
        self.most = longest + room
        self.end = int(tokenizer.eos_token_id)  # type: ignore[attr-defined]
        self.decode = tokenizer.decode  # type: ignore[attr-defined]

    def packed(self, page: Page, *, answered: bool = True) -> Packed | None:
        """A page's tokens; ``None`` where they are too many.

        Args:
            page: The page.
            answered: Whether answers stand behind the questions.
        """
        rendered = [self._renderer.render(_prompt(page, one)) for one in page.questions]
        asked = [one.token_ids for one in rendered]
        spans = [(span.start, span.end) for span in rendered[0].documents]
        head = _common(asked)
        answers = [
            [*self._renderer.encoder.literal(one.answer), self.end] if answered else []
            for one in page.questions
        ]
        # The last token of what is asked foretells the first one of the answer: each has its own.
        tails = [ids[head:] + said for ids, said in zip(asked, answers, strict=True)]
        fitting = sum(total <= self._room for total in itertools.accumulate(map(len, tails)))
        if head > self._longest or not fitting:
            return None
        tails, answers = tails[:fitting], answers[:fitting]
        shared, places, stretches, read = _shared(asked[0][:head], spans, page.links)
        lengths = [len(tail) for tail in tails]
        learnt: list[int] = []
        following: list[int] = []
        weights: list[float] = []
        at = len(shared)
        for tail, said in zip(tails, answers, strict=True):
            first = at + len(tail) - len(said) - 1
            learnt += range(first, first + len(said))
            following += said
            weights += [max(1, len(said)) ** -0.5] * len(said)
            at += len(tail)
        return Packed(
            torch.tensor([*shared, *(token for tail in tails for token in tail)]),
            torch.cat([places, *(torch.arange(head, head + length) for length in lengths)]),
            stretches,
            read,
            lengths,
            list(map(len, answers)),
            torch.tensor(learnt),
            torch.tensor(following),
            torch.tensor(weights),
        )


def _prompt(page: Page, question: Question) -> Prompt:
    opening: list[str | PromptDocument] = []
    for document in page.documents:
        opening += [PromptDocument(document), page.separator]
    messages = [Message("system", page.system)] if page.system else []
    for text, answer in question.after:
        messages += [Message("user", [*opening, text]), Message("assistant", answer)]
        opening = []
    return Prompt(messages=(*messages, Message("user", [*opening, question.text])))


def _common(rows: Sequence[list[int]]) -> int:
    """Tokens with which all begin, one less than the shortest has."""
    most = min(map(len, rows)) - 1
    first = rows[0]
    return next(
        (at for at in range(most) if any(row[at] != first[at] for row in rows)),
        most,
    )


def _shared(
    tokens: list[int], spans: Sequence[tuple[int, int]], links: int | None
) -> tuple[list[int], Tensor, list[Stretch], Tensor]:
    """Tokens that are read by all, their places, who sees whom, and what questions see."""
    count = len(tokens)
    places = torch.arange(count)
    if links is None or not spans:
        stretches = []
        for begin in range(0, count, CHUNK):
            end = min(count, begin + CHUNK)
            unseen = places[:end] > places[begin:end, None]
            stretches.append(Stretch(slice(begin, end), slice(0, end), unseen))
        return tokens, places, stretches, places
    reused = torch.zeros(count, dtype=torch.bool)
    for begin, end in spans:
        reused[begin + links : end] = True
    computed = places[~reused]
    packed = computed.tolist()
    stretches, final = [], torch.ones(len(packed), dtype=torch.bool)
    for begin, end in spans:
        queries = slice(len(packed), len(packed) + end - begin)
        along = torch.arange(end - begin)
        stretches.append(Stretch(queries, queries, along > along[:, None]))
        final = torch.cat([final, along >= links])
        packed += range(begin, end)
    at = torch.tensor(packed)
    unseen = (at > computed[:, None]) | ~final
    first = Stretch(slice(0, len(computed)), slice(0, len(at)), unseen)
    return [tokens[place] for place in packed], at, [first, *stretches], final.nonzero()[:, 0]
