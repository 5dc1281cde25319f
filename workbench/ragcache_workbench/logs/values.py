"""Finds out what the values at one place of a prompt are about, from many of them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ragcache_integrations.core.texts import split_words, token_weight, word_spans
from ragcache_integrations.prompts.layout import Change, Flow
from ragcache_integrations.prompts.lint import (
    CountTokens,
    Matter,
    Stretch,
    common_length,
    excerpt,
)

__all__ = ["Values", "classify_values", "rank_costs", "remove_ranks"]

MIN_ITEM = 5
"""Tokens, about, of the shortest line that can be a document's; shorter ones recur by chance."""

MIN_RECURRING = 0.1
"""Share of tokens in recurring lines above which values are documents."""

FEW = 0.5
"""Share of distinct values up to which they belong to users or conversations, not to requests."""

SHORT = 64
"""The most tokens of a text about a user; longer ones are documents."""

_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_DAY = r"(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?"
_TIME = re.compile(
    r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2})?|\d{1,2}:\d{2}(?::\d{2})?(?:\.\d+)?"
    rf"|\d{{1,2}}[/.]\d{{1,2}}[/.]\d{{2,4}}|\b{_MONTH}\.? \d{{1,2}}\b"
    r"|\b1[5-9]\d{8}(?:\d{3})?\b",
    re.IGNORECASE,
)
# No two alternatives match at the same place, so that hostile text cannot cause backtracking.
_TIME_REST = re.compile(
    rf"(?:\b(?:{_DAY}|{_MONTH}|am|pm|utc|gmt)\b|(?<=\d)[tz]|[\d\W_])+", re.IGNORECASE
)
_ID = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{8,}|\d{6,}"
    r"|[a-z]+[-_](?=[a-z0-9]*\d)[a-z0-9]{6,}|(?=[a-z0-9_-]*\d)(?=[a-z0-9_-]*[a-z])[a-z0-9_-]{16,}",
    re.IGNORECASE,
)
_RANK = re.compile(
    r"^[ \t]*"
    r"(?:[\[(]\#?(?P<a>\d{1,2})[\])]:?"
    r"|(?:document|doc|source|passage|context|chunk|result|snippet)"
    r"[ \t]*\#?(?P<b>\d{1,2})[ \t]*[:.)\]-]"
    r"|<\w+ (?:id|index|rank|n|number)=[\"']?(?P<c>\d{1,2})[\"']?>"
    r"|(?P<d>\d{1,2})[.:)](?=\s))\s*",
    re.IGNORECASE | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Values:
    """The values at one place in a flow's requests.

    Attributes:
        values: One text for each request, in the order of the requests.
        role: Role of the message, ``system`` or ``user``.
        heading: The fixed text before the values, which names them.
    """

    values: tuple[str, ...]
    role: str
    heading: str = ""


def classify_values(place: Values, flow: Flow, count_tokens: CountTokens) -> list[Stretch]:
    """Find out what the values are about and how they change.

    Args:
        place: The values.
        flow: Whether texts about users stay the same within a conversation.
        count_tokens: Counts the tokens of a text.

    Returns:
        One stretch. None if all values are the same white space. Two if the values begin with the
        same words, or if documents follow a line that is new in each request.
    """
    values = place.values
    tokens = sum(map(count_tokens, values)) / len(values)
    if len(set(values)) == 1:
        return [Stretch(excerpt(values[0]), "text", Change.FIXED, tokens)] if tokens else []
    bare = [" ".join(value.split()) for value in values]
    label = _label(place)
    if len(set(bare)) == 1:
        return [Stretch(f"white space {label}", "whitespace", Change.REQUEST, tokens)]
    lead, rests = _without_common_ends(bare)
    cores = [rest.strip(" .,;:()[]\"'") for rest in rests if rest]
    stretch = Stretch(label, _new_matter(place), Change.REQUEST, tokens)
    if all(map(_is_time, cores)):
        stretch = Stretch(f"a time, {label}", "timestamp", Change.REQUEST, tokens)
    elif all(map(_ID.fullmatch, cores)):
        stretch = Stretch(f"an id, {label}", "random_id", Change.REQUEST, tokens)
    elif len(set(bare)) <= FEW * len(bare) and tokens <= SHORT and place.role == "system":
        change = Change.CONVERSATION if flow == "conversation" else Change.REQUEST
        stretch = Stretch(f"text of a user or tenant, {label}", "user", change, tokens)
    elif documents := _documents(place, label, count_tokens):
        return documents
    if not lead:
        return [stretch]
    same = count_tokens(lead)
    return [
        Stretch(excerpt(lead), "text", Change.FIXED, same),
        replace(stretch, tokens=tokens - same),
    ]


def remove_ranks(text: str) -> str:
    """The text without numbers such as ``Source 1:`` at the beginnings of its lines."""
    return _RANK.sub("", text)


def rank_costs(texts: Sequence[str], count_tokens: CountTokens) -> tuple[float, int, str]:
    """Find paragraphs whose number differs from that in an earlier text.

    Returns:
        Their tokens per text, the first token of the first of them, and the form of its number.
    """
    numbers: dict[str, set[str]] = defaultdict(set)
    lost = 0
    first: tuple[int, str] | None = None
    for text in texts:
        matches = list(_RANK.finditer(text))
        ends = [*(match.start() for match in matches[1:]), len(text)]
        for match, end in zip(matches, ends, strict=False):
            number = next(filter(None, match.groups()))
            paragraph = text[match.end() : end].partition("\n\n")[0]
            line = paragraph.strip().partition("\n")[0]
            if token_weight(line) < MIN_ITEM:
                continue
            if numbers[line] - {number}:
                lost += count_tokens(paragraph)
                if first is None:
                    name = re.sub(r"\d+", "N", match.group().strip())
                    first = count_tokens(text[: match.start()]), name
            numbers[line].add(number)
    token, label = first or (0, "")
    return lost / len(texts), token, label


def _label(place: Values) -> str:
    heading = excerpt(place.heading[-40:]) if place.heading.strip() else ""
    example = next((value for value in place.values if value.strip()), "")
    return f"{excerpt(example)} after {heading}" if heading else excerpt(example)


def _without_common_ends(values: Sequence[str]) -> tuple[str, list[str]]:
    """The first words that all values share, and the rest without the last shared words."""
    spans = [list(word_spans(value)) for value in values]
    words = list(map(split_words, values))
    first = min(common_length(words[0], other) for other in words)
    rests = [line[first:][::-1] for line in words]
    last = min(common_length(rests[0], other) for other in rests)

    def cut(value: str, kept: Sequence[tuple[int, int]]) -> str:
        return value[kept[0][0] : kept[-1][1]] if kept else ""

    inner = [
        cut(value, own[first : len(own) - last]) for value, own in zip(values, spans, strict=True)
    ]
    return cut(values[0], spans[0][:first]), inner


def _is_time(value: str) -> bool:
    return bool(_TIME.search(value)) and bool(_TIME_REST.fullmatch(value))


def _new_matter(place: Values) -> Matter:
    """What a text is about that is new in each request."""
    return "query" if place.role == "user" else "other"


def _documents(place: Values, label: str, count_tokens: CountTokens) -> list[Stretch]:
    """The documents, if lines recur, and the line before them if it never recurs."""
    lines = [_items(value) for value in place.values]
    seen = Counter(line for items in lines for line in set(items))
    weights = {line: count_tokens(line) for line in seen}
    total = sum(weights[line] for items in lines for line in items)
    recurring = sum(weights[line] for items in lines for line in items if seen[line] > 1)
    if not total or recurring < MIN_RECURRING * total:
        return []
    count = len(place.values)
    tokens = sum(map(count_tokens, place.values)) / count
    if tokens <= SHORT and max(map(len, lines)) <= 1:
        return []  # questions recur, too
    first = [items[0] for items in lines if len(items) > 1]
    new_first = sum(1 for line in first if seen[line] == 1)
    heads: list[Stretch] = []
    others = total - sum(weights[line] for line in first)
    # If the first line were a document's, it would recur about as often as the others.
    if (
        len(first) > 0.9 * count
        and new_first >= 0.9 * len(first)
        and others > 0
        and recurring >= 0.5 * others
    ):
        length = sum(weights[line] for line in first) / count
        heads = [Stretch(excerpt(first[0]), _new_matter(place), Change.REQUEST, length)]
        tokens -= length
    return [
        *heads,
        Stretch(f"documents, {label}", "documents", Change.RECURRING, tokens, recurring / count),
    ]


def _items(value: str) -> list[str]:
    """The lines that are long enough to be a document's."""
    return [line for line in map(str.strip, value.splitlines()) if token_weight(line) >= MIN_ITEM]
