"""The findings of the linter, and the rule that finds them.

A prompt is a sequence of stretches, each of which changes in its own way. If a stretch changes, all
stretches after it are computed again. For those that change less often, the KV cache could have
been reused: the rule adds up their tokens.
"""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any, Literal

from ragcache_integrations.prompts.layout import Change

__all__ = [
    "MIN_TOKENS",
    "REMEDIES",
    "WORDS",
    "Finding",
    "LintReport",
    "Matter",
    "Stretch",
    "break_findings",
]

MIN_TOKENS = 16
"""The fewest tokens that are reported: KV caches are reused in whole blocks, and vLLM's have 16
tokens on a GPU."""

SHOWN = 3
"""The most stretches that a finding names, the most expensive ones."""

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

WORDS: dict[str, Any] = tomllib.loads(files(__package__).joinpath("words.toml").read_text("utf-8"))

REMEDIES: dict[str, str] = WORDS["remedies"]
"""How to fix each kind of finding."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A piece of a prompt that changes in one way.

    Attributes:
        label: Names it, such as ``{question}`` or the beginning of a text.
        matter: What it is about.
        change: How it changes.
        tokens: Its length in tokens, on average.
        reusable: Tokens of it whose KV cache could be reused if nothing before it changed;
            ``None`` means all of them.
    """

    label: str
    matter: Matter
    change: Change
    tokens: float
    reusable: float | None = None

    @property
    def worth(self) -> float:
        """Tokens that are lost if something before it changes."""
        return self.tokens if self.reusable is None else self.reusable


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that breaks a common prefix.

    Attributes:
        code: One of the keys of :data:`REMEDIES`.
        part: The part of the prompt that breaks it.
        token: The first token of the prompt that differs, counted from 0.
        recomputed_tokens: Tokens after it, on average in each request, that are computed again
            although they have been computed before. Findings overlap: a token after two of them
            counts for both.
        remedy: How to fix it.
        behind: The parts after it that are computed again.
        flow: The flow that it belongs to, if the traffic has several.
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
        return asdict(self)

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
    """The result of the linter.

    Attributes:
        findings: The findings, the most expensive first.
        recomputed_tokens: Tokens per request that are computed again although they have been
            computed before; each counts once.
        prompt_tokens: Tokens of a prompt, on average; for a template, with assumed lengths of its
            variables.
        requests: Number of requests; 0 for a template.
        shared_prefix: Share of all prompt tokens that are in a common prefix with an earlier
            request, between 0 and 1; ``None`` for a template.
        skipped: Number of lines or entries of a log that could not be read.
        remarks: Why the first of them could not be read, and what else of a log was left out.
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
        findings = [finding.as_dict() for finding in self.findings]
        return {**asdict(self), "findings": findings, "remarks": list(self.remarks)}

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
    """Find the stretches before others that change less.

    Args:
        stretches: The prompt, from its beginning.
        min_tokens: The fewest recomputed tokens that are reported.

    Returns:
        The findings in the order of the prompt, and the total of recomputed tokens.
    """
    findings = []
    following = _Following()
    tokens = sum(stretch.tokens for stretch in stretches)
    for stretch in reversed(stretches):
        tokens -= stretch.tokens
        cost = following.cost(stretch.change)
        if round(cost) >= min_tokens:
            code = _code(stretch, following.matters(stretch.change))
            names = following.names(stretch.change)
            findings.append(
                Finding(code, stretch.label, round(tokens), round(cost), REMEDIES[code], names)
            )
        following.add(stretch)
    highest = -1
    recomputed = 0.0
    for stretch in stretches:
        recomputed += stretch.worth if stretch.change.rank < highest else 0
        highest = max(highest, stretch.change.rank)
    return findings[::-1], recomputed


class _Following:
    """The stretches after a place in a prompt, by how they change.

    It is updated while the prompt is walked from its end, so that the rule takes time that is
    linear in the number of stretches.
    """

    def __init__(self) -> None:
        self._worth: dict[Change, float] = defaultdict(float)
        self._matters: dict[Change, set[Matter]] = defaultdict(set)
        self._dearest: dict[Change, list[tuple[float, int, str]]] = defaultdict(list)
        self._count = 0

    def add(self, stretch: Stretch) -> None:
        self._count -= 1  # a stretch that is added later comes earlier in the prompt
        self._worth[stretch.change] += stretch.worth
        self._matters[stretch.change].add(stretch.matter)
        if stretch.label != '""':  # white space has no name
            dearest = self._dearest[stretch.change]
            dearest.append((-stretch.worth, self._count, stretch.label))
            dearest.sort()
            del dearest[SHOWN:]

    def cost(self, change: Change) -> float:
        """Tokens that are lost after a stretch that changes in this way."""
        return sum(worth for kind, worth in self._worth.items() if kind.rank < change.rank)

    def matters(self, change: Change) -> set[Matter]:
        """What the lost stretches are about."""
        lost = [matters for kind, matters in self._matters.items() if kind.rank < change.rank]
        return set().union(*lost)

    def names(self, change: Change) -> str:
        """Labels of the most expensive lost stretches, in the order of the prompt."""
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
    after = next((m for m in ("documents", "history") if m in matters), "fixed-text")
    return f"{stretch.matter}-before-{after}"
