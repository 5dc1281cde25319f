"""An invented catalogue, whose questions look alike and have other answers.

Every model comes in several versions, and every version has the same five sentences with other
numbers: the question for one version's price is nearer to that for another version's price than to
any rephrasing of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["AskedOnce", "catalogue"]

MODELS = (
    *("Alder", "Birch", "Cedar", "Dogwood", "Elm", "Fir", "Ginkgo", "Hazel", "Ivy", "Juniper"),
    *("Badger", "Curlew", "Dormouse", "Ermine", "Fallow", "Grouse", "Heron", "Ibex", "Jackdaw"),
    *("Kestrel", "Agate", "Beryl", "Coral", "Diamond", "Emerald", "Flint", "Garnet", "Howlite"),
    *("Iolite", "Jasper", "Arno", "Bug", "Clyde", "Danube", "Ebro", "Fulda", "Garonne", "Havel"),
    *("Inn", "Jordan", "Aster", "Bryony", "Clover", "Daisy", "Edelweiss", "Freesia", "Gentian"),
    *("Heather", "Iris", "Jasmine"),
)
VERSIONS = ("100", "150", "200", "250", "300")
ASPECTS = {
    "height": (
        (
            "The {name} tent stands {a} cm high and covers {b} square metres of ground. Poles of "
            "aluminium hold it, and one person puts it up within ten minutes."
        ),
        ("How high is the {name} tent?", "What is the height of the {name}?"),
    ),
    "price": (
        (
            "The {name} tent costs {a} crowns with its bag and {b} pegs. A worn one returned earns "
            "a tenth of that price."
        ),
        ("What is the price of the {name} tent?", "How much do I pay for a {name}?"),
    ),
    "persons": (
        (
            "The {name} tent sleeps {a} persons on mats of usual width. Another {b} fit into its "
            "porch, if the weather is dry."
        ),
        ("How many people sleep in the {name} tent?", "For how many persons is the {name}?"),
    ),
    "rain": (
        (
            "The cloth of the {name} tent keeps out {a} mm of rain. Its seams were welded, and {b}"
            " years of guarantee go with them."
        ),
        ("How much rain does the {name} tent keep out?", "Is the {name} waterproof?"),
    ),
    "weight": (
        (
            "Packed, the {name} tent weighs {a} grams, which {b} straps fasten to any rucksack of "
            "ours. The inner tent can stay at home."
        ),
        ("What does the {name} tent weigh?", "How heavy is the {name} when it is packed?"),
    ),
}


@dataclass(frozen=True)
class AskedOnce:
    """Passages, and questions that are asked in this order.

    Attributes:
        passages: Texts by id.
        questions: Each with the id of the passage that answers it; empty where none is known to.
    """

    passages: dict[str, str]
    questions: Sequence[tuple[str, str]]


def catalogue(seed: int, *, models: int = 10) -> AskedOnce:
    """Return a catalogue and all questions about it, shuffled.

    Args:
        seed: From 0. The first five have no model in common.
        models: How many models there are, at most ten.
    """
    rng = np.random.default_rng([seed, 7])
    passages: dict[str, str] = {}
    questions: list[tuple[str, str]] = []
    first = 10 * seed % len(MODELS)
    for model, version in itertools.product(MODELS[first : first + models], VERSIONS):
        name = f"{model} {version}"
        for aspect, (passage, wordings) in ASPECTS.items():
            passage_id = f"{name} {aspect}"
            a, b = rng.integers(2, 999, 2).tolist()
            passages[passage_id] = passage.format(name=name, a=a, b=b)
            questions += [(wording.format(name=name), passage_id) for wording in wordings]
    order = rng.permutation(len(questions)).tolist()
    return AskedOnce(passages, [questions[place] for place in order])
