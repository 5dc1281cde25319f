"""Rephrases questions by rules, so that a stream repeats no text.

The kinds of repetition, from near to far:

- ``verbatim``: the same text (the only kind that repeats texts).
- ``prefixed``: up to three short prefixes, as in Proximity §4.2.2.
- ``slight``: a prefix, an ending, another question mark, or a contraction.
- ``light``: two of these.
- ``medium``: a word or phrase replaced by a synonym, or a part moved; then as ``light``.
- ``heavy``: two such changes, and the question turned around or cut down to its keywords; then as
  ``light``.

If a question has no more texts of its kind, further slight changes are added. Texts that differ
only in capitals and spaces count as the same, since the embedding model does not distinguish them.
The rules' words are in ``evaluation/data/rephrasing.json``; each rule keeps the meaning, not always
the grammar.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any, Literal, get_args

import numpy as np

from ragcache_integrations.core.checks import check_choice
from ragcache_integrations.errors import ConfigurationError

__all__ = ["KINDS", "Kind", "normal_form", "rephrase"]

Kind = Literal["verbatim", "prefixed", "slight", "light", "medium", "heavy"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_TABLES: dict[str, Any] = json.loads(
    files("ragcache_workbench.evaluation").joinpath("data/rephrasing.json").read_text("utf-8")
)
GREETINGS, REASONS, OPENINGS, CLOSINGS = (
    tuple(_TABLES[name]) for name in ("greetings", "reasons", "openings", "closings")
)
CONTRACTIONS: dict[str, str] = _TABLES["contractions"]
SYNONYMS: dict[str, str] = {
    **_TABLES["synonyms in encyclopaedic questions"],
    **_TABLES["synonyms in medical questions"],
}
# Words that are left out of a search by keywords.
FUNCTION_WORDS = frozenset(_TABLES["function words"])

Edit = Callable[[str], list[str]]


def _bare(text: str) -> str:
    return text.rstrip("?. ")


def _lead(text: str, openings: Sequence[str]) -> list[str]:
    return [f"{opening} {text}" for opening in openings]


def _end(text: str) -> list[str]:
    mark = "?" if text.endswith("?") else ""
    bare = _bare(text)
    return [f"{bare}{separator}{end}{mark}" for end in CLOSINGS for separator in (" ", ", ")]


def _mark(text: str) -> list[str]:
    return [variant for end in ("", "?", "??", "...") if (variant := _bare(text) + end) != text]


def _substitute(table: Mapping[str, str], text: str) -> list[str]:
    """The text with one entry of the table replaced, for every entry that it holds."""
    lower = text.casefold()
    variants = (
        re.sub(rf"\b{re.escape(old)}\b", new, text, count=1, flags=re.IGNORECASE)
        for old, new in table.items()
        if old in lower  # quicker to see
    )
    return [variant for variant in variants if variant != text]


def _contract(text: str) -> list[str]:
    return _substitute(CONTRACTIONS, text)


def _swap_word(text: str) -> list[str]:
    return _substitute(SYNONYMS, text)


def _rewrite(patterns: Mapping[str, Sequence[str]], text: str) -> list[str]:
    """The bare text in all other orders, for every pattern that it has the form of."""
    matches = ((re.fullmatch(pattern, _bare(text)), forms) for pattern, forms in patterns.items())
    return [match.expand(form) for match, forms in matches if match for form in forms]


def _move(text: str) -> list[str]:
    """``Amblyopia: is loss permanent?`` -> ``is loss permanent, Amblyopia``, and the like."""
    return _rewrite(_TABLES["moves"], text)


def _turn(text: str) -> list[str]:
    """``who is the owner of it`` -> ``the owner of it is who``; or only the keywords."""
    turned = _rewrite(_TABLES["turns"], text)
    words = re.findall(r"[\w'-]+", text)
    keywords = [word for word in words if word.casefold() not in FUNCTION_WORDS]
    if 2 < len(keywords) < len(words):  # noqa: PLR2004 - two words are no question
        turned += [" ".join(keywords)]
    return turned


def _slight(rng: np.random.Generator) -> Edit:
    edits: tuple[Edit, ...] = (
        lambda text: _lead(text, OPENINGS),
        lambda text: _lead(text, GREETINGS),
        _end,
        _mark,
        _contract,
    )
    return edits[int(rng.choice(len(edits), p=(0.3, 0.2, 0.35, 0.1, 0.05)))]


def _apply(edit: Edit, text: str, rng: np.random.Generator) -> str:
    variants = edit(text)
    return variants[int(rng.integers(len(variants)))] if variants else text


def _draw(text: str, kind: Kind, extra: int, rng: np.random.Generator) -> str:
    """One rephrasing, which may be the text itself or have been drawn before."""
    if kind == "prefixed":
        for table in (OPENINGS, REASONS, GREETINGS):
            if rng.random() < 0.5:  # noqa: PLR2004 - a coin
                text = f"{table[int(rng.integers(len(table)))]} {text}"
        return text
    for _ in range({"medium": 1, "heavy": 2}.get(kind, 0)):
        text = _apply(lambda question: [*_swap_word(question), *_move(question)], text, rng)
    if kind == "heavy":
        text = _apply(_turn, text, rng)
    for _ in range((1 if kind == "slight" else 2) + extra):
        text = _apply(_slight(rng), text, rng)
    return text


def normal_form(text: str) -> str:
    """The same for texts that differ in nothing but capitals and spaces."""
    return " ".join(re.findall(r"\w+|[^\w\s]", text.casefold()))


ATTEMPTS = 200
ATTEMPTS_PER_CHANGE = 10
"""Attempts without a new text after which one more slight change is made."""


def rephrase(text: str, kind: Kind, rng: np.random.Generator, taken: set[str]) -> str:
    """Put a question in other words.

    Args:
        text: The question.
        kind: How far from it; see above.
        rng: The source of chance.
        taken: Normal forms of texts that must not come again; the new one's is added.

    Returns:
        A text whose normal form is neither in ``taken`` nor the question's; for ``verbatim`` always
        the question itself.

    Raises:
        ConfigurationError: There is no such kind, or no new text was found.
    """
    check_choice("kind", kind, KINDS)
    if kind == "verbatim":
        return text
    original = normal_form(text)
    for attempt in range(ATTEMPTS):
        drawn = _draw(text, kind, attempt // ATTEMPTS_PER_CHANGE, rng)
        form = normal_form(drawn)
        if form not in taken and form != original:
            taken.add(form)
            return drawn
    raise ConfigurationError(f"no new {kind} rephrasing found of {text!r}")
