"""Linting recorded traffic: the template is found again in the requests that it made."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ragcache_integrations.core.ids import content_id
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.layout.layout import Change, Flow
from ragcache_integrations.prompts.lint.alignment import common_runs, cutter
from ragcache_integrations.prompts.lint.requests import RecordedRequest
from ragcache_integrations.prompts.lint.rules import (
    MIN_TOKENS,
    REMEDIES,
    Finding,
    LintReport,
    Stretch,
    break_findings,
)
from ragcache_integrations.prompts.lint.tokens import (
    CountTokens,
    approximate_tokens,
    common_length,
    excerpt,
    printable,
)
from ragcache_integrations.prompts.lint.values import Values, judged, ranked, unranked
from ragcache_integrations.prompts.rendering import stable_json

__all__ = ["MIN_REQUESTS", "lint_traffic"]

MIN_REQUESTS = 2
"""Requests of a flow from which something can be learnt."""

FLOW_WORDS = 3
"""Words at the beginning of a prompt by which flows are told apart."""

COMMON_WORDS = 8
"""Words that texts of one template have in common at least, and half of the shortest."""

FLOW_SHARE = {"system": 0.02, "user": 0.2}
"""Share of the requests that must begin so: users' questions begin alike by chance."""

MIN_REWRITTEN = 0.2
"""Share of turns below which a rewritten history is a price paid once for many turns."""

VAIN_READS = 8
"""Times that a text is read in vain for JSON that breaks off."""

VAIN_TRIES = 1000
"""Places in a text where JSON seems to begin and breaks off. Each costs a little time for all of
the text before it, where the error's line is counted."""

LOOK_BACK = 256
"""Earlier requests among which the turn before is looked for."""

_OPEN, _CLOSE = "\ue000", "\ue001"  # private use: stands for a JSON value
_PLACEHOLDER = re.compile(f"{_OPEN}([0-9a-f]+){_CLOSE}")
_JSON_BEGINS = re.compile(r"\{\s*\"|\[\s*[\"{\[]")


def lint_traffic(
    requests: Sequence[RecordedRequest],
    *,
    flow: Flow | None = None,
    count_tokens: CountTokens = approximate_tokens,
    min_tokens: int = MIN_TOKENS,
) -> LintReport:
    """Lint recorded requests, in the order in which they were sent.

    Requests of one model are taken to come from one template where they have much text in common,
    or where they begin alike.

    Args:
        requests: At least two; dozens tell more.
        flow: Whether they belong to conversations; by default those with a history.
        count_tokens: Counts the tokens of a text.
        min_tokens: Tokens per request that a finding must cost.

    Raises:
        ConfigurationError: There are fewer than two requests.
    """
    if len(requests) < MIN_REQUESTS:
        msg = f"traffic must have at least {MIN_REQUESTS} requests, got {len(requests)}"
        raise ConfigurationError(msg)
    groups = _flows(_distinct(requests))
    findings: list[tuple[float, Finding]] = []
    recomputed = 0.0
    for name, group in groups.items():
        if len(group) < MIN_REQUESTS:
            continue
        shown = name if len(groups) > 1 else ""
        lint = _FlowLint(group, flow, _counter(group[0], count_tokens), min_tokens, shown)
        share = len(group) / len(requests)
        findings += [(f.recomputed_tokens * share, f) for f in lint.findings]
        recomputed += lint.recomputed * share
    findings.sort(key=lambda found: -found[0])
    texts = [request.text for request in requests]
    counters = [_counter(request, count_tokens) for request in requests]
    lengths = [count(text) for count, text in zip(counters, texts, strict=True)]
    shared = sum(
        counters[place](texts[place][:length]) for place, length in _shared_prefixes(texts)
    )
    return LintReport(
        findings=tuple(finding for _, finding in findings),
        recomputed_tokens=round(recomputed),
        prompt_tokens=round(sum(lengths) / len(requests)),
        requests=len(requests),
        shared_prefix=shared / sum(lengths) if sum(lengths) else 0.0,
    )


class _FlowLint:
    """The findings in the requests of one flow."""

    def __init__(
        self,
        requests: Sequence[RecordedRequest],
        flow: Flow | None,
        count_tokens: CountTokens,
        min_tokens: int,
        name: str,
    ) -> None:
        self._count = count_tokens
        self._min_tokens = min_tokens
        self._name = name
        self._json: dict[str, set[str]] = defaultdict(set)  # how each JSON value was written
        self._inside: list[Finding] = []  # found inside of documents
        histories = [request.history for request in requests]
        self._flow: Flow = flow or ("conversation" if any(histories) else "single_turn")
        stretches = self._tools(requests)
        stretches += self._section(
            [request.system for request in requests], "system", sum(s.tokens for s in stretches)
        )
        before = sum(stretch.tokens for stretch in stretches)
        if any(histories):
            stretches.append(self._history(histories))
        behind = sum(stretch.tokens for stretch in stretches)
        stretches += self._section([request.last for request in requests], "user", behind)
        self.findings, self.recomputed = break_findings(stretches, min_tokens=min_tokens)
        others = self._inside + self._rewritten(requests, round(before))
        self.recomputed += sum(finding.recomputed_tokens for finding in others)
        self.findings += others
        self.findings = [replace(finding, flow=name) for finding in self.findings]

    def _tools(self, requests: Sequence[RecordedRequest]) -> list[Stretch]:
        written = [request.tools for request in requests]
        if not any(written):
            return []
        tokens = sum(map(self._count, written)) / len(written)
        if len(set(written)) == 1:
            return [Stretch("tools", "text", Change.FIXED, tokens)]
        if len({_canonical_tools(tools) for tools in written if tools}) == 1:
            # As many tokens as are behind the change, wherever in the tools it is.
            return [
                Stretch("the order in the tools", "json", Change.REQUEST, 0),
                Stretch("tools", "text", Change.FIXED, tokens),
            ]
        return [Stretch("tools", "other", Change.REQUEST, tokens)]

    def _section(self, texts: Sequence[str], role: str, before: float) -> list[Stretch]:
        if not any(texts):
            return []
        lost, token, label = ranked(texts, self._count)
        self._found_inside("rank-in-document", f'"{label}"', round(before) + token, lost)
        marked = [self._mark_json(unranked(text)) for text in texts]
        runs = common_runs([text for text in marked if text.strip()])
        pieces = [found for found in map(cutter(runs), marked) if found is not None]
        stretches: list[Stretch] = []
        heading = ""
        for place, column in enumerate(zip(*pieces, strict=True)):
            if place % 2:
                stretches += self._fixed(column)
                heading = column[0]
                continue
            values = Values(tuple(self._unmark(value) for value in column), role, heading)
            found = judged(values, self._flow, self._count)
            if any(stretch.matter == "documents" for stretch in found):
                token = round(before + sum(stretch.tokens for stretch in stretches))
                self._found_inside("unsorted-json", found[-1].label, token, self._moved(column))
            stretches += found
        return stretches

    def _fixed(self, column: Sequence[str]) -> list[Stretch]:
        """Fixed text, with the JSON in it whose keys moved, and white space that changed."""
        stretches: list[Stretch] = []
        for number, piece in enumerate(_PLACEHOLDER.split(column[0])):
            text = self._unmark(f"{_OPEN}{piece}{_CLOSE}") if number % 2 else piece
            if number % 2 and len(self._json.get(piece, ())) > 1:
                label = f"the order of keys in {excerpt(text)}"
                stretches.append(Stretch(label, "json", Change.REQUEST, 0))
            if text.strip():
                tokens = self._count(text)
                stretches.append(Stretch(excerpt(text), "text", Change.FIXED, tokens))
        if len(set(column)) > 1:
            other = next(text for text in column if text != column[0])
            same = common_length(column[0], other)
            label = f"white space behind {excerpt(column[0][:same][-40:])}"
            at = self._count(column[0][:same])
            rest = sum(s.tokens for s in stretches) - at
            return [
                Stretch(excerpt(column[0]), "text", Change.FIXED, at),
                Stretch(label, "whitespace", Change.REQUEST, 0),
                Stretch(excerpt(column[0][same:]), "text", Change.FIXED, rest),
            ]
        return stretches

    def _history(self, histories: Sequence[Sequence[tuple[str, str]]]) -> Stretch:
        tokens = sum(self._count(text) for history in histories for _, text in history)
        return Stretch("the history", "history", Change.CONVERSATION, tokens / len(histories))

    def _mark_json(self, text: str) -> str:
        """Put a mark in place of every JSON value whose keys or items could stand otherwise."""
        marked = []
        position = 0
        text = text.replace(_OPEN, " ").replace(_CLOSE, " ")  # marks are ours alone
        for start, end, value in _json_values(text):
            key = content_id(stable_json(value))
            self._json[key].add(text[start:end])
            marked += [text[position:start], f"{_OPEN}{key}{_CLOSE}"]
            position = end
        return "".join([*marked, text[position:]])

    def _unmark(self, text: str) -> str:
        return _PLACEHOLDER.sub(lambda match: min(self._json.get(match[1]) or [match[0]]), text)

    def _moved(self, column: Sequence[str]) -> float:
        """Tokens per request of JSON that was also written in another order."""
        moved = [
            min(self._json[key])
            for text in column
            for key in _PLACEHOLDER.findall(text)
            if len(self._json.get(key, ())) > 1
        ]
        return sum(map(self._count, moved)) / len(column)

    def _found_inside(self, code: str, label: str, token: int, lost: float) -> None:
        if round(lost) >= self._min_tokens:
            self._inside.append(Finding(code, label, token, round(lost), REMEDIES[code]))

    def _rewritten(self, requests: Sequence[RecordedRequest], token: int) -> list[Finding]:
        """Whether histories are not what they were a turn ago, and more."""
        lost = turns = rewritten = 0
        for place, request in enumerate(requests):
            earlier = _turn_before(requests[max(0, place - LOOK_BACK) : place], request)
            if earlier is None:
                continue
            turns += 1
            same = common_length(earlier.history, request.history)
            if same < len(earlier.history):
                rewritten += 1
                again = set(earlier.history)
                lost += sum(self._count(t) for r, t in request.history[same:] if (r, t) in again)
        cost = round(lost / turns) if turns else 0
        if cost < self._min_tokens or rewritten < MIN_REWRITTEN * turns:
            return []
        code = "history-rewritten"
        return [Finding(code, "the history", token, cost, REMEDIES[code])]


def _counter(request: RecordedRequest, count_tokens: CountTokens) -> CountTokens:
    return _count_ids if request.token_ids else count_tokens


def _count_ids(text: str) -> int:
    """Token ids that stand in it to their end."""
    return text.count("#")


def _distinct(requests: Sequence[RecordedRequest]) -> list[RecordedRequest]:
    """Leave out what was sent before, word for word: it tells nothing about what varies."""
    return list({request.text: request for request in reversed(requests)}.values())[::-1]


def _flows(requests: Sequence[RecordedRequest]) -> dict[str, list[RecordedRequest]]:
    """Sort requests by the template that they seem to come from, each named by how it begins."""
    kinds: dict[tuple[str, bool, bool], list[RecordedRequest]] = defaultdict(list)
    for request in requests:
        kinds[request.model, bool(request.system), request.token_ids].append(request)
    flows: dict[str, list[RecordedRequest]] = defaultdict(list)
    for (model, _, _), alike in kinds.items():
        beginnings = [""] * len(alike) if _one_template(alike) else list(map(_beginning, alike))
        counts = Counter(beginnings)
        for request, words in zip(alike, beginnings, strict=True):
            share = FLOW_SHARE["system" if request.system else "user"]
            common = counts[words] >= max(MIN_REQUESTS, share * len(alike))
            name = f"{words or _beginning(alike[0])} ..." if common else "other prompts"
            flows[f"{printable(model)}: {name}" if model else name].append(request)
    return dict(flows)


def _one_template(requests: Sequence[RecordedRequest]) -> bool:
    """Whether the system texts, or else the questions, have most words in common."""
    texts = [_canonical(request.system or request.last) for request in requests]
    shared = sum(map(len, common_runs(texts))) if all(texts) else 0
    enough = min(len(text.split()) for text in texts) // 2 if requests[0].system else 0
    return shared >= max(COMMON_WORDS, enough)


def _beginning(request: RecordedRequest) -> str:
    words = re.sub(r"\d+", "0", _canonical(request.system or request.last)).split()
    return printable(" ".join(words[:FLOW_WORDS]))


def _canonical(text: str) -> str:
    """The text with its JSON values in one order."""
    pieces = []
    position = 0
    for start, end, value in _json_values(text):
        pieces += [text[position:start], stable_json(value)]
        position = end
    return "".join([*pieces, text[position:]])


def _turn_before(
    earlier: Sequence[RecordedRequest], request: RecordedRequest
) -> RecordedRequest | None:
    asked = [text for role, text in request.history if role == "user" and text.strip()]
    if not asked:
        return None
    known = set(request.history)
    return next(
        (r for r in reversed(earlier) if asked[-1] in r.last and not known.isdisjoint(r.history)),
        None,
    )


def _canonical_tools(tools: str) -> str:
    try:
        value = json.loads(tools)
        return stable_json(sorted(map(stable_json, value)) if isinstance(value, list) else value)
    except (ValueError, RecursionError):
        return tools  # a NaN, or a very deep schema: one request's tools must not stop the others


def _json_values(text: str) -> Iterator[tuple[int, int, object]]:
    """JSON objects of at least two keys, and lists that hold such objects.

    Where a value breaks off, the values in it are looked for, too. Text that is read in vain is
    paid from a budget, and with it goes the search: brackets inside of brackets that nothing
    closes would take quadratic time.
    """
    decoder = json.JSONDecoder()
    budget, tries = VAIN_READS * len(text), VAIN_TRIES
    position = 0
    while budget >= 0 and tries and (match := _JSON_BEGINS.search(text, position)) is not None:
        start = position = match.start()
        try:
            value, position = decoder.raw_decode(text, start)
            plain = stable_json(value)
        except (ValueError, RecursionError) as error:
            budget -= _read_in_vain(error, len(text)) - start
            tries -= 1
            position = start + 1
            continue
        if plain.count('":') > 1:
            yield start, position, value


def _read_in_vain(error: Exception, length: int) -> int:
    """How far a decoder read before it failed."""
    if not isinstance(error, json.JSONDecodeError) or "Unterminated" in error.msg:
        return length  # of an unclosed string the error says only where it begins
    return error.pos


def _shared_prefixes(texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """The number of each text, and how many characters of it begin an earlier one, too.

    Of all earlier texts, one of the two neighbours in alphabetical order shares the most. They are
    found from the last text to the first, each leaving the row of sorted texts after its turn.
    """
    ordered = sorted(range(len(texts)), key=texts.__getitem__)
    before = dict(zip(ordered, [None, *ordered], strict=False))
    behind = dict(zip(ordered, [*ordered[1:], None], strict=True))
    for place in reversed(range(len(texts))):
        left, right = before[place], behind[place]
        neighbours = [texts[at] for at in (left, right) if at is not None]
        longest = max((common_length(texts[place], other) for other in neighbours), default=0)
        yield place, longest
        if left is not None:
            behind[left] = right
        if right is not None:
            before[right] = left
