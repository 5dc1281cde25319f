"""The knobs of the answer caches, the same in every framework."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, model_validator

from ragcache_integrations.core.knobs import Positive, Share, checked
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache.validation import check_below_one
from ragcache_integrations.retrievers.cached import SharedKnobs, check_distance

__all__ = ["AnswerKnobs", "check_embedded"]


Distance = checked(check_distance)


class AnswerKnobs(SharedKnobs):
    """The settings of an :class:`AnswerCache`.

    Attributes:
        tolerance: The largest distance between the embeddings of a question and of an answered one
            at which that answer is served, if everything else agrees. It is the L2 distance, which
            is ``sqrt(2 - 2 cos)`` for vectors of unit length. 0 serves only the same words.
            ``auto`` learns it: new answers are compared with those that would have
            been served, and a distance is opened only when the share of wrong ones is proven to
            stay below ``error``.
        error: With ``tolerance="auto"``: the share of wrong answers, among those served to a
            question in other words, stays below this.
        confidence: With ``tolerance="auto"``: how surely.
        start_tolerance: With ``tolerance="auto"``: the tolerance to begin with. Until enough has
            been learnt, every hit is checked in the background by answering it again.
        largest_tolerance: With ``tolerance="auto"``: no distance above it is used.
        check_rate: With ``tolerance="auto"``: the share of hits in other words that are answered
            again in the background, in the long run, to see that they are still right.
        guard: Whether a question gets an earlier one's answer only if it differs from it in nothing
            that matters: numbers, dates, negations, opposites, comparisons, units, names, what is
            asked for, the order of words, or one word that is not known to mean the same; see
            :func:`~ragcache_integrations.retrievers.keys.question_difference`.
        capacity: The most answers that are kept. The least recently used goes first.
        ignores: Names of what surrounds a call although no answer depends on it, such as a
            request's id in a context variable, or ``thread_id``.
        seed: Decides which hits are checked.
        cache: A Redis server, as a URL or a ``RedisServer``, whose answers all processes share;
            ``None`` for this process's memory. It needs ``tag``. Tools do without it.
        tag: With ``cache``: names all that an answer depends on and that no process can see of
            another, which are the chain, its prompt, its models and the embedding model. It must be
            the same in all processes that share answers, and another one in all others.

    Raises:
        ConfigurationError: A knob is unknown or out of range, or there is a ``tag`` without a
            ``cache``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    tolerance: Annotated[float | Literal["auto"], Distance] = "auto"
    error: Annotated[float, checked(check_below_one)] = 0.01
    confidence: Annotated[float, checked(check_below_one)] = 0.95
    largest_tolerance: Annotated[float, Distance] = 0.7
    check_rate: Share = 0.03
    capacity: Positive = 1000
    tag: str = ""

    @model_validator(mode="after")
    def _check_tag(self) -> Self:
        if self.tag and self.cache is None:
            msg = f"tag={self.tag!r} is for answers that are shared: pass cache=, too, or no tag"
            raise ConfigurationError(msg)
        return self


def check_embedded(knobs: AnswerKnobs, name: str, *, embeds: bool) -> None:
    """Refuse a tolerance between questions that nothing embeds.

    Args:
        knobs: The knobs.
        name: Of the argument that is the embedding model.
        embeds: Whether something does.

    Raises:
        ConfigurationError: There is such a tolerance.
    """
    for setting in () if embeds else ("tolerance", "start_tolerance"):
        value = getattr(knobs, setting)
        if value not in {None, "auto", 0}:
            raise ConfigurationError(
                f"{setting}={value} is a distance between embeddings, and nothing embeds the "
                f"questions: pass {name}, or {setting}=0 to serve the same words alone"
            )
