"""What a linted prompt is made of, what is found in it, and the one rule that finds it.

A prompt is a row of stretches, each of which changes in its own way. Whatever stands behind a
stretch that changes more often than itself is computed again with that, although its own KV cache
could have been reused: the rule adds up those tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ragcache_integrations.prompts.layout.layout import Change

__all__ = ["MIN_TOKENS", "REMEDIES", "Finding", "LintReport", "Matter", "Stretch", "break_findings"]

MIN_TOKENS = 16
"""Tokens below which a finding is not worth a word: KV caches are reused in whole blocks, which
vLLM makes 16 tokens long on a GPU."""

SHOWN = 3
"""Names of what stands behind a finding, the dearest."""

Matter = Literal[
    "text",
    "documents",
    "history",
    "query",
    "timestamp",
    "random_id",
    "user",
    "json",
    "whitespace",
    "other",
]
"""What a stretch is about."""

REMEDIES: dict[str, str] = {
    "timestamp": (
        "Put the time at the end, beside the query, or leave it out; where the day is enough, "
        "write the date alone."
    ),
    "random-id": "Leave the id out, or send it as metadata of the request, not as text.",
    "query-before-documents": (
        "Put the query behind the documents: they come again in other requests, it does not."
    ),
    "query-before-history": "Put the query behind the history, which it breaks in every turn.",
    "query-before-fixed-text": (
        "Put what is always the same before the query, in the system message."
    ),
    "documents-before-history": (
        "Put the documents behind the history, into the last user message: other documents in "
        "each turn break all of the history."
    ),
    "documents-before-fixed-text": (
        "Put what is always the same before the documents, in the system message."
    ),
    "history-before-documents": (
        "Where each request is a conversation of its own, put the history behind the documents."
    ),
    "history-before-fixed-text": "Put what is always the same before the history.",
    "per-user-text": (
        "Put text about the user behind the documents, or in a conversation between the fixed text "
        "and the history."
    ),
    "varying-text": (
        "Bind this to a value if it has only one; otherwise put it behind what changes less, "
        "beside the query."
    ),
    "unsorted-json": "Write JSON with sorted keys and lists in a fixed order (stable_json).",
    "unstable-whitespace": "Strip every part and put one fixed separator between two parts.",
    "rank-in-document": (
        "Leave the rank out of the documents' text: the same document at another rank is another "
        "text. Name documents by an id of their own, if they are to be cited."
    ),
    "history-rewritten": (
        "Add to the history only at its end; drop the oldest half at once when it is too long, "
        "rather than one message in each turn."
    ),
}
"""How to mend each kind of finding."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A piece of a prompt that changes in one way.

    Attributes:
        label: Names it, such as ``{question}`` or the beginning of a text.
        matter: What it is about.
        change: How it changes.
        tokens: Its length.
        reusable: Tokens of it whose KV caches could be reused if nothing before it changed; all
            of them where ``None``.
    """

    label: str
    matter: Matter
    change: Change
    tokens: float
    reusable: float | None = None

    @property
    def worth(self) -> float:
        """Tokens that are lost where something before it changes."""
        return self.tokens if self.reusable is None else self.reusable


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that breaks a common prefix.

    Attributes:
        code: One of :data:`REMEDIES`.
        part: What breaks it.
        token: The first token of the prompt that differs, counted from 0.
        recomputed_tokens: Tokens behind it, on average in each request, that are computed again
            although they have been computed before. Findings overlap: what stands behind two of
            them counts for both.
        remedy: How to mend it.
        behind: What stands behind it and is computed again.
        flow: The flow in which it was found, where the traffic has several.
    """

    code: str
    part: str
    token: int
    recomputed_tokens: int
    remedy: str
    behind: str = ""
    flow: str = ""

    def as_dict(self) -> dict[str, Any]:
        """All attributes, for JSON."""
        return {name: getattr(self, name) for name in self.__slots__}

    def __str__(self) -> str:
        """One paragraph for people to read."""
        where = f"{self.flow}: " if self.flow else ""
        behind = f" ({self.behind})" if self.behind else ""
        return (
            f"{where}{self.code} at token {self.token}: {self.part}\n"
            f"  {self.recomputed_tokens} tokens computed again in each request{behind}\n"
            f"  {self.remedy}"
        )


@dataclass(frozen=True, slots=True)
class LintReport:
    """What was found.

    Attributes:
        findings: The costliest first.
        recomputed_tokens: Tokens per request that are computed again although they have been
            computed before; each counts once, whatever stands before it.
        prompt_tokens: Tokens of a prompt, on average; of a template, with assumed lengths of its
            variables.
        requests: Requests that were looked at; 0 for a template.
        shared_prefix: Share of all prompt tokens that stand in a common prefix with an earlier
            request, between 0 and 1; ``None`` for a template.
        skipped: Lines or entries of a log that could not be read.
        remarks: Why the first of them could not, and what else of a log was left out.
    """

    findings: tuple[Finding, ...]
    recomputed_tokens: int
    prompt_tokens: int
    requests: int = 0
    shared_prefix: float | None = None
    skipped: int = 0
    remarks: tuple[str, ...] = ()

    @property
    def codes(self) -> tuple[str, ...]:
        """The findings' codes, in their order."""
        return tuple(finding.code for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """All attributes, for JSON."""
        return {
            "findings": [finding.as_dict() for finding in self.findings],
            "recomputed_tokens": self.recomputed_tokens,
            "prompt_tokens": self.prompt_tokens,
            "requests": self.requests,
            "shared_prefix": self.shared_prefix,
            "skipped": self.skipped,
            "remarks": list(self.remarks),
        }

    def __str__(self) -> str:
        """The whole report for people to read."""
        if self.requests:
            share = f"{100 * (self.shared_prefix or 0):.1f} %"
            head = (
                f"{self.requests} requests of {self.prompt_tokens} tokens on average, {share} of "
                "them in a prefix shared with an earlier request"
            )
        else:
            head = f"a prompt of about {self.prompt_tokens} tokens"
        skipped = [f"{self.skipped} that cannot be read are skipped"] if self.skipped else []
        remarks = [f"  {remark}" for remark in self.remarks]
        findings = list(map(str, self.findings)) or ["nothing found"]
        return "\n".join([head, *skipped, *remarks, *findings])


def break_findings(
    stretches: Sequence[Stretch], *, min_tokens: int = MIN_TOKENS
) -> tuple[list[Finding], float]:
    """Find the stretches that stand before others that change less.

    Args:
        stretches: The prompt, from its beginning.
        min_tokens: Tokens that a finding must cost.

    Returns:
        The findings in the order of the prompt, and the tokens that are computed again in all.
    """
    findings = []
    behind = _Behind()
    tokens = sum(stretch.tokens for stretch in stretches)
    for stretch in reversed(stretches):
        tokens -= stretch.tokens
        cost = behind.cost(stretch.change)
        if round(cost) >= min_tokens:
            code = _code(stretch, behind.matters(stretch.change))
            names = behind.names(stretch.change)
            findings.append(
                Finding(code, stretch.label, round(tokens), round(cost), REMEDIES[code], names)
            )
        behind.add(stretch)
    highest = -1
    recomputed = 0.0
    for stretch in stretches:
        recomputed += stretch.worth if stretch.change.rank < highest else 0
        highest = max(highest, stretch.change.rank)
    return findings[::-1], recomputed


class _Behind:
    """What stands behind a place in a prompt, by how it changes.

    Kept while the prompt is walked through from its end, so that a prompt of many stretches takes
    time that is linear in their number.
    """

    def __init__(self) -> None:
        self._worth: dict[Change, float] = defaultdict(float)
        self._matters: dict[Change, set[Matter]] = defaultdict(set)
        self._dearest: dict[Change, list[tuple[float, int, str]]] = defaultdict(list)
        self._count = 0

    def add(self, stretch: Stretch) -> None:
        self._count -= 1  # the last added stands first
        self._worth[stretch.change] += stretch.worth
        self._matters[stretch.change].add(stretch.matter)
        if stretch.label != '""':  # white space has no name
            dearest = self._dearest[stretch.change]
            dearest.append((-stretch.worth, self._count, stretch.label))
            dearest.sort()
            del dearest[SHOWN:]

    def cost(self, change: Change) -> float:
        """Tokens that are lost behind something that changes so."""
        return sum(worth for kind, worth in self._worth.items() if kind.rank < change.rank)

    def matters(self, change: Change) -> set[Matter]:
        """What is lost is about these."""
        lost = [matters for kind, matters in self._matters.items() if kind.rank < change.rank]
        return set().union(*lost)

    def names(self, change: Change) -> str:
        """The dearest that are lost, in the order of the prompt."""
        lost = [dear for kind, dear in self._dearest.items() if kind.rank < change.rank]
        shown = sorted(item for dear in lost for item in dear)[:SHOWN]
        return ", ".join(label for _, _, label in sorted(shown, key=lambda item: item[1]))


_BY_MATTER: Mapping[Matter, str] = {
    "timestamp": "timestamp",
    "random_id": "random-id",
    "user": "per-user-text",
    "json": "unsorted-json",
    "whitespace": "unstable-whitespace",
    "other": "varying-text",
    "text": "varying-text",
}


def _code(stretch: Stretch, lost: set[Matter]) -> str:
    if stretch.matter in _BY_MATTER:
        return _BY_MATTER[stretch.matter]
    matters = lost - {stretch.matter}
    behind = next((m for m in ("documents", "history") if m in matters), "fixed-text")
    return f"{stretch.matter}-before-{behind}"
