"""Recorded profiles, so that two runs under comparison have the same ones."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Self

from ragcache_integrations.adaptive import ProfileEstimate, QueryProfile
from ragcache_integrations.errors import ConfigurationError

__all__ = ["RecordedProfiler", "save_profiles"]


class RecordedProfiler:
    """Returns recorded profiles.

    Args:
        estimates: The estimates, by question.
    """

    def __init__(self, estimates: Mapping[str, ProfileEstimate]) -> None:
        self._estimates = dict(estimates)

    def __len__(self) -> int:
        return len(self._estimates)

    def __iter__(self) -> Iterator[str]:
        """The questions, in the order in which they were recorded."""
        return iter(self._estimates)

    def profile(self, question: str) -> ProfileEstimate:
        """Look a question up; one that was not recorded has no profile."""
        unknown = ProfileEstimate(None, "recorded", problem="the question was not recorded")
        return self._estimates.get(question, unknown)

    async def aprofile(self, question: str) -> ProfileEstimate:
        """Async version of :meth:`profile`; neither of them waits."""
        return self.profile(question)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what :func:`save_profiles` wrote.

        Raises:
            ConfigurationError: The file cannot be read, or does not hold profiles.
        """
        try:
            lines = Path(path).read_text(encoding="utf-8").split("\n")
            rows = [json.loads(line) for line in lines if line.strip()]
            return cls(
                {
                    row["question"]: ProfileEstimate(
                        QueryProfile(**row["profile"]),
                        "recorded",
                        None if row["confidence"] is None else float(row["confidence"]),
                    )
                    for row in rows
                }
            )
        except (OSError, ValueError, TypeError, LookupError) as error:
            raise ConfigurationError(f"{path} holds no recorded profiles: {error}") from error


def save_profiles(path: str | Path, estimates: Iterable[tuple[str, ProfileEstimate]]) -> int:
    """Write profiles as JSON lines, each with its question and confidence.

    Args:
        path: The file.
        estimates: Questions with their estimates; those without a profile are left out.

    Returns:
        Number of profiles written.
    """
    lines = [
        json.dumps(
            {
                "question": question,
                "profile": asdict(estimate.profile),
                "confidence": estimate.confidence,
            }
        )
        for question, estimate in estimates
        if estimate.profile is not None
    ]
    Path(path).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return len(lines)
