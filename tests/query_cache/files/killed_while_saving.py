"""Kill processes that save a cache, at random moments, and look at what is left.

``killed_while_saving.py FOLDER KILLS`` prints a JSON object. Each round forks a process that saves
one generation of the same entries after the other to the same file, says which it has saved, and is
killed. What is then loaded must be one generation, whole, and none older than the last one told.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

from ragcache_integrations.query_cache import Candidate, QueryCache

POINTS = np.random.default_rng(0).standard_normal((150, 64)).astype(np.float32)


def generation(number: int) -> QueryCache[int]:
    cache = QueryCache[int](64, len(POINTS), 0)
    for row, point in enumerate(POINTS):
        cache.insert(point, [Candidate(str(row), number)])
    return cache


def save_for_ever(path: Path, first: int, told: int) -> None:
    for number in range(first, sys.maxsize):
        generation(number).save(path)
        os.write(told, f"{number}\n".encode())


def found(path: Path) -> set[int]:
    """Return the generations that are in the file."""
    cache = QueryCache[int](64, len(POINTS), 0)
    cache.load(path)
    hits = [cache.lookup(point, 1) for point in POINTS]
    return {-1 if hit is None else hit.candidates[0].document for hit in hits}


def main(folder: Path, kills: int) -> dict[str, object]:
    path, chosen = folder / "cache.npz", random.Random(0)
    generation(0).save(path)
    last, losses, interrupted = 0, [], 0
    for _ in range(kills):
        hear, tell = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                save_for_ever(path, last + 1, tell)
            finally:
                os._exit(1)
        os.close(tell)
        time.sleep(chosen.uniform(0.005, 0.08))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(hear) as lines:
            told = max([last, *map(int, lines)])
        left = found(path)
        if left not in ({told}, {told + 1}):
            losses.append([told, sorted(left)])
        for rubbish in folder.glob(".*.tmp"):
            rubbish.unlink()
            interrupted += 1
        last = max(left)
    return {"kills": kills, "during a save": interrupted, "losses": losses}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))))
