"""What a hit is proven to have got right.

An entry knows every document up to a radius R around its key: the store was searched exactly, and
its last candidate lies at R. A query at distance delta from the key is further than R - delta from
all other documents, by the triangle inequality. So those of its re-ranked candidates that are no
further than that are truly its nearest ones, up to ties: m of them prove a recall of min(m, k) / k.

- L2: no further than ``R - delta``.
- Unit vectors (always so for ``cosine``): angles obey the triangle inequality on the sphere, which
  proves more: an angle of at most ``angle_R - angle_delta``.
- Inner product, taken as the distance ``-x @ q``: with S the smallest score fetched and B no less
  than any document's length, the others score at most ``S + delta * B``; so ``R = -S``, and delta
  counts B times.
- Several entries together, for unit vectors: a document x outside all of them has
  ``x @ key_e <= s_e``, s_e the similarity at R_e. If every x with these properties and
  ``x @ query >= s`` is longer than 1, none exists. The shortest such x is a least-distance problem
  (Lawson and Hanson, Solving Least Squares Problems, ch. 23); any value of its dual is a lower
  bound of ``|x|**2``, so that stopping early proves less, never wrongly.

Stores search in 32-bit floats. The product of such vectors is off by at most ``dim * 2**-24`` of
their lengths (Higham, Accuracy and Stability of Numerical Algorithms, §3.1), hence a squared
distance by ``(dim + 4) * 2**-23`` of the squared lengths, and R is taken smaller by that.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from .types import Metric

__all__ = [
    "UNIT_SLACK",
    "are_unit",
    "known_radius",
    "nothing_nearer",
    "proven",
    "proven_unit",
    "safe_radius",
]

UNIT_SLACK = 1e-5
"""How far from 1 the squared length of what counts as a unit vector may be. A chord of two of them
is off by less."""
_UNIT_LENGTH = 1 + 2.0**-20  # no vector is longer that was scaled to 1 and rounded to 32 bits
_SWEEPS = 200
_ROUNDING = 1e-12  # of the 64-bit arithmetic here
_LARGEST_CHORD = 1.9  # beyond, an angle is ill-conditioned as a function of its chord
_LOST = 2.0**-124  # of a product too small for 32 bits
_LARGEST = 2.0**126  # beyond, sums of 32 bits may overflow


def safe_radius(radius: float, metric: Metric, dim: int, length: float, longest: float) -> float:
    """Return the radius within which surely every document is known.

    Args:
        radius: From the key to the furthest candidate; infinite if there are no other documents.
        metric: How the store ranks documents.
        dim: Dimension of the embeddings.
        length: L2 length of the key.
        longest: For ``ip``: the L2 length of the longest document vector.
    """
    if math.isinf(radius):
        return radius
    off, lost = (dim + 4) * 2.0**-23, dim * _LOST
    largest = length * longest if metric == "ip" else (2 * length + radius) ** 2
    if largest > _LARGEST:
        return -math.inf
    if metric == "ip":
        return radius - 2 * (off * largest + lost)
    # |computed - true| <= off * (|q|**2 + |x|**2) with |x| <= d + |q|, solved for the true d.
    square = radius * radius * (1 - 2 * off) - 6 * off * length * length - 2 * lost
    return math.sqrt(max(square, 0.0) / (1 + 2 * off))


def known_radius(
    distances: NDArray[np.float64] | None,
    key: NDArray[np.float32],
    metric: Metric,
    longest: float,
    *,
    complete: bool,
) -> float:
    """Return the radius within which what a search found is surely every document.

    Args:
        distances: From the key to the documents found, ascending; ``None`` where not known.
        key: The query, as it is kept, shape (dim,).
        metric: How the store ranks documents.
        longest: For ``ip``: the L2 length of the longest document vector.
        complete: The store had no more documents.
    """
    if distances is None:
        return -math.inf
    if complete:
        return math.inf
    length = _UNIT_LENGTH
    if metric != "cosine":  # of which keys are unit vectors
        wide = key.astype(np.float64)
        length = math.sqrt(wide @ wide)
    return safe_radius(float(distances[-1]), metric, len(key), length, longest)


def proven(distances: Sequence[float], radius: float, delta: float) -> int:
    """Return how many of the nearest candidates are proven.

    Args:
        distances: From the query to the candidates, ascending.
        radius: Within which of the key every document is known.
        delta: By how much less another document may be away from the query than from the key.
    """
    bound = radius - delta
    if math.isfinite(bound):
        bound -= _ROUNDING * (abs(radius) + delta)
    return bisect_right(distances, bound)


def proven_unit(distances: Sequence[float], radius: float, delta: float) -> int:
    """Version of :func:`proven` for chords of unit vectors, by their angles."""
    if math.isinf(radius):
        return len(distances) if radius > 0 else 0
    known = math.asin(min(max(radius - UNIT_SLACK, 0.0), _LARGEST_CHORD) / 2)
    apart = math.asin(min((delta + UNIT_SLACK) / 2, 1.0))
    if known <= apart:
        return 0
    return bisect_right(distances, 2 * math.sin(known - apart) - UNIT_SLACK)


def are_unit(vectors: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return which vectors have length 1, shape (n,).

    Args:
        vectors: Finite, shape (n, dim) or, for one vector, (dim,).
    """
    squares = np.atleast_1d((vectors.astype(np.float64) ** 2).sum(axis=-1))
    return np.asarray(abs(squares - 1) <= UNIT_SLACK)


def nothing_nearer(
    keys: NDArray[np.float64],
    radii: Sequence[float],
    query: NDArray[np.float64],
    worst: float,
    kernels: ModuleType,
) -> bool:
    """Return whether no unknown document is nearer to the query than the worst of an answer.

    Args:
        keys: Unit vectors of several entries, shape (n, dim).
        radii: Chords within which each of them knows every document.
        query: A unit vector, shape (dim,).
        worst: The chord from the query to the furthest document of the answer.
        kernels: The module of compiled or plain loops.
    """
    chords = np.array([worst, *radii])
    similarities = 1 - chords * chords / 2
    similarities[1:] *= -1
    rows = np.vstack([query, -keys])
    result: bool = kernels.exceeds(
        rows @ rows.T, similarities - 2 * UNIT_SLACK, 1 + 2 * UNIT_SLACK, _SWEEPS
    )
    return result
