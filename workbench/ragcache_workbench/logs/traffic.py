"""Lints recorded traffic: reconstructs the templates from the requests that they made."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from ragcache_integrations.core.prompt import PromptDocument, part_text
from ragcache_integrations.core.texts import content_id, split_words, word_spans
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.layout import Change, Flow
from ragcache_integrations.prompts.lint import (
    MIN_TOKENS,
    REMEDIES,
    CountTokens,
    Finding,
    LintReport,
    Stretch,
    approximate_tokens,
    break_findings,
    common_length,
    excerpt,
    printable,
)
from ragcache_integrations.prompts.rendering import stable_json
from ragcache_integrations.prompts.repeats import Repeats

from .alignment import common_runs, cutter
from .files import Log
from .requests import RecordedRequest, recorded_requests
from .values import Values, classify_values, rank_costs, remove_ranks

__all__ = ["MIN_REQUESTS", "lint_traffic"]

MIN_REQUESTS = 2
"""The fewest requests of a flow that show what varies."""

FLOW_WORDS = 3
"""Words at the beginning of a prompt that distinguish flows."""

COMMON_WORDS = 8
"""The fewest words that texts of one template share; they also share half of the shortest text."""

FLOW_SHARE = {"system": 0.02, "user": 0.2}
"""Share of the requests of a flow that must begin with the same words, by role of the beginning.
It is larger for users: their questions begin with the same words by chance."""

MIN_REWRITTEN = 0.2
"""Share of turns with a rewritten history that is reported. Below it, rewriting the history once
in many turns may be worth its price."""

VAIN_READS = 8
"""How often a text may be read in vain, in search of JSON that turns out to be incomplete."""

VAIN_TRIES = 1000
"""The most places in a text where incomplete JSON may seem to begin. Each takes time for all of the
text before it, because the error counts its lines."""

LOOK_BACK = 256
"""Number of earlier requests that are searched for the previous turn."""

_OPEN, _CLOSE = "\ue000", "\ue001"  # private-use characters around the key of a JSON value
_PLACEHOLDER = re.compile(f"{_OPEN}([0-9a-f]+){_CLOSE}")
_JSON_BEGINS = re.compile(r"\{\s*\"|\[\s*[\"{\[]")


def lint_traffic(
    entries: Sequence[object],
    *,
    flow: Flow | None = None,
    count_tokens: CountTokens = approximate_tokens,
    min_tokens: int = MIN_TOKENS,
) -> LintReport:
    """Lint recorded requests, in the order in which they were sent.

    :func:`~ragcache_integrations.prompts.lint_prompt` finds this function by its entry point.
    Requests of one model belong to one template if they have much text in common, or begin with the
    same words.

    Args:
        entries: At least two requests, or entries that :func:`recorded_requests` reads; dozens show
            more.
        flow: ``"single_turn"`` or ``"conversation"``; ``None`` means a conversation if there is a
            history.
        count_tokens: Counts the tokens of a text.
        min_tokens: The fewest recomputed tokens per request that are reported.

    Raises:
        ConfigurationError: There are fewer than two requests, or an entry cannot be read.
    """
    requests: list[RecordedRequest] = []
    for number, entry in enumerate(entries, 1):
        if isinstance(entry, RecordedRequest):
            requests.append(entry)
        else:
            requests += recorded_requests(entry, f"request {number}")
    skipped, remarks = 0, list[str]()
    if isinstance(entries, Log):
        skipped, remarks = entries.skipped, entries.remarks
    if skipped and len(requests) < MIN_REQUESTS:
        msg = f"a log must have at least {MIN_REQUESTS} requests that can be read: {remarks[0]}"
        raise ConfigurationError(msg)
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
    findings.sort(key=lambda weighted: -weighted[0])
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
        skipped=skipped,
        remarks=tuple(remarks),
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
        self._json: dict[str, set[str]] = defaultdict(set)  # texts of each JSON value, by its key
        self._inside: list[Finding] = []  # findings inside of documents
        histories = [request.history for request in requests]
        self._flow: Flow = flow or ("conversation" if any(histories) else "single_turn")
        stretches = self._tools(requests)
        stretches += self._section(
            [request.system for request in requests], "system", sum(s.tokens for s in stretches)
        )
        before = sum(stretch.tokens for stretch in stretches)
        if any(histories):
            stretches.append(self._history(histories))
        position = sum(stretch.tokens for stretch in stretches)
        stretches += self._section([request.last for request in requests], "user", position)
        self.findings, self.recomputed = break_findings(stretches, min_tokens=min_tokens)
        others = self._inside + self._rewritten(requests, round(before))
        others += self._repeated(requests, round(position))
        self.recomputed += sum(finding.recomputed_tokens for finding in others)
        self.findings += others
        self.findings = [replace(finding, flow=name) for finding in self.findings]

    def _tools(self, requests: Sequence[RecordedRequest]) -> list[Stretch]:
        texts = [request.tools for request in requests]
        if not any(texts):
            return []
        tokens = sum(map(self._count, texts)) / len(texts)
        if len(set(texts)) == 1:
            return [Stretch("tools", "text", Change.FIXED, tokens)]
        if len({_canonical_tools(text) for text in texts if text}) == 1:
            # The order may differ anywhere in the tools, so all of their tokens count.
            return [
                Stretch("the order in the tools", "json", Change.REQUEST, 0),
                Stretch("tools", "text", Change.FIXED, tokens),
            ]
        return [Stretch("tools", "other", Change.REQUEST, tokens)]

    def _section(self, texts: Sequence[str], role: str, before: float) -> list[Stretch]:
        if not any(texts):
            return []
        lost, token, label = rank_costs(texts, self._count)
        self._report_inside("rank-in-document", f'"{label}"', round(before) + token, lost)
        marked = [self._mark_json(remove_ranks(text)) for text in texts]
        runs = common_runs([text for text in marked if text.strip()])
        pieces = [cuts for cuts in map(cutter(runs), marked) if cuts is not None]
        stretches: list[Stretch] = []
        heading = ""
        for place, column in enumerate(zip(*pieces, strict=True)):
            if place % 2:
                stretches += self._fixed_stretches(column)
                heading = column[0]
                continue
            values = Values(tuple(self._unmark(value) for value in column), role, heading)
            classified = classify_values(values, self._flow, self._count)
            if any(stretch.matter == "documents" for stretch in classified):
                token = round(before + sum(stretch.tokens for stretch in stretches))
                label = classified[-1].label
                self._report_inside("unsorted-json", label, token, self._moved_tokens(column))
            stretches += classified
        return stretches

    def _fixed_stretches(self, column: Sequence[str]) -> list[Stretch]:
        """Stretches of fixed text, of JSON in it whose keys moved, and of changed white space."""
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
            label = f"white space after {excerpt(column[0][:same][-40:])}"
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
        """Replace every JSON value whose keys or items could be in another order by a mark."""
        marked = []
        position = 0
        text = text.replace(_OPEN, " ").replace(_CLOSE, " ")  # the text must not contain marks
        for start, end, value in _json_values(text):
            key = content_id(stable_json(value))
            self._json[key].add(text[start:end])
            marked += [text[position:start], f"{_OPEN}{key}{_CLOSE}"]
            position = end
        return "".join([*marked, text[position:]])

    def _unmark(self, text: str) -> str:
        return _PLACEHOLDER.sub(lambda match: min(self._json.get(match[1]) or [match[0]]), text)

    def _moved_tokens(self, column: Sequence[str]) -> float:
        """Tokens per request of JSON values that were also sent in another order."""
        moved = [
            min(self._json[key])
            for text in column
            for key in _PLACEHOLDER.findall(text)
            if len(self._json.get(key, ())) > 1
        ]
        return sum(map(self._count, moved)) / len(column)

    def _report_inside(self, code: str, label: str, token: int, lost: float) -> None:
        if round(lost) >= self._min_tokens:
            self._inside.append(Finding(code, label, token, round(lost), REMEDIES[code]))

    def _repeated(self, requests: Sequence[RecordedRequest], token: int) -> list[Finding]:
        """A finding if new messages have text that the same request has before."""
        lost = 0
        where = Counter[str]()
        for request in requests:
            if request.token_ids:
                continue
            repeats = Repeats()
            new = [("user", request.last), *request.rest]
            turns = [("system", request.system), *request.history, *new]
            for place, (role, text) in enumerate(turns):
                if role == "assistant" or not text:
                    continue  # what the model says is not retrieved
                read = repeats.read([PromptDocument(text)])
                if place > len(request.history) and len(read) > 1 - isinstance(read[0], str):
                    saved = self._count(text) - self._count("".join(map(part_text, read)))
                    lost += saved
                    where[role] += saved
        cost = round(lost / len(requests))
        if cost < self._min_tokens:
            return []
        code, ((role, _), *_) = "repeated-document", where.most_common(1)
        label = f"text in new messages of the role {role} that is earlier in the same request"
        return [Finding(code, label, token, cost, REMEDIES[code])]

    def _rewritten(self, requests: Sequence[RecordedRequest], token: int) -> list[Finding]:
        """A finding if histories do not begin with the history of the previous turn."""
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
    """Number of complete token ids in a text."""
    return text.count("#")


def _distinct(requests: Sequence[RecordedRequest]) -> list[RecordedRequest]:
    """Leave out exact repetitions, which show nothing about what varies."""
    return list({request.text: request for request in reversed(requests)}.values())[::-1]


def _flows(requests: Sequence[RecordedRequest]) -> dict[str, list[RecordedRequest]]:
    """Group requests by the template that they seem to come from, named by its beginning."""
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
    """Whether the system texts or, without them, the questions have most words in common."""
    texts = [_canonical(request.system or request.last) for request in requests]
    shared = sum(map(len, common_runs(texts))) if all(texts) else 0
    enough = min(len(split_words(text)) for text in texts) // 2 if requests[0].system else 0
    return shared >= max(COMMON_WORDS, enough)


def _beginning(request: RecordedRequest) -> str:
    text = " ".join(re.sub(r"\d+", "0", _canonical(request.system or request.last)).split())
    ends = [end for _, end in islice(word_spans(text), FLOW_WORDS)]
    return printable(text[: max(ends, default=0)])


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
    questions = [text for role, text in request.history if role == "user" and text.strip()]
    if not questions:
        return None
    last, known = questions[-1], set(request.history)
    return next(
        (r for r in reversed(earlier) if last in r.last and not known.isdisjoint(r.history)),
        None,
    )


def _canonical_tools(tools: str) -> str:
    try:
        value = json.loads(tools)
        return stable_json(sorted(map(stable_json, value)) if isinstance(value, list) else value)
    except (ValueError, RecursionError):
        return tools  # a NaN or a very deep schema must not prevent linting the other requests


def _json_values(text: str) -> Iterator[tuple[int, int, object]]:
    """JSON objects of at least two keys, and lists that hold such objects.

    If a value is incomplete, the values inside of it are looked for, too. Nested brackets that are
    never closed would take quadratic time, so text that is read in vain is deducted from a budget,
    and the search ends with it.
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
            budget -= _error_position(error, len(text)) - start
            tries -= 1
            position = start + 1
            continue
        if plain.count('":') > 1:
            yield start, position, value


def _error_position(error: Exception, length: int) -> int:
    """Number of characters up to which a decoder read before it failed."""
    if not isinstance(error, json.JSONDecodeError) or "Unterminated" in error.msg:
        return length  # the error has the beginning of an unclosed string, not its end
    return error.pos


def _shared_prefixes(texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """The number of each text, and the length of the prefix that it shares with an earlier one.

    Among the earlier texts in alphabetical order, one of a text's two neighbours shares the longest
    prefix. The texts are taken from the last to the first, and each is removed from the order after
    its turn, so that only earlier texts are left in it.
    """
    ordered = sorted(range(len(texts)), key=texts.__getitem__)
    before = dict(zip(ordered, [None, *ordered], strict=False))
    after = dict(zip(ordered, [*ordered[1:], None], strict=True))
    for place in reversed(range(len(texts))):
        left, right = before[place], after[place]
        neighbours = [texts[at] for at in (left, right) if at is not None]
        longest = max((common_length(texts[place], other) for other in neighbours), default=0)
        yield place, longest
        if left is not None:
            after[left] = right
        if right is not None:
            before[right] = left
