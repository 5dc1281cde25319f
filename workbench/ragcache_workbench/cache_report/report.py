"""The findings in words and numbers, and as a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ragcache_workbench.reports import (
    Cell,
    Panel,
    Report,
    Section,
    Table,
    Tile,
    comparison,
    marked,
    percent,
)

from .questions import LoggedQuestion
from .replay import (
    CONFIDENCE,
    TOLERANCES,
    Count,
    Proof,
    Replay,
    least_hits,
)

__all__ = [
    "MOST_TENANTS",
    "Findings",
    "Group",
    "Judge",
    "Rule",
    "amount",
    "can_be_wrong",
    "charts",
    "report_of",
    "spread",
]

MOST_TENANTS = 20
"""The tenants with the most questions that are shown."""

Judge = Literal["answers", "documents"] | None
"""What shows that a hit is wrong: that the answers differ, or the documents; ``None``: nothing."""

_CENT = 0.01
_WHOLE = 9.95  # per cent, from which on they have no decimal


def can_be_wrong(questions: Sequence[LoggedQuestion], judge: Judge) -> bool:
    """Whether a log shows of each judged hit if it is wrong: by answers that are not all the same.

    Two questions that find the same documents may have different answers, so documents show only
    some of the wrong hits.
    """
    answers = {question.answer for question in questions if question.answer is not None}
    return judge == "answers" and len(answers) > 1


@dataclass(frozen=True, slots=True)
class Rule:
    """A cache with each of the tolerances.

    Attributes:
        replay: What it did.
        proof: Up to which tolerance the share of wrong hits is proven to be small enough.
    """

    replay: Replay
    proof: Proof

    def saved(self, place: int) -> Count:
        """The hits among the questions, at a tolerance."""
        hits = self.replay.hits[place]
        return Count(int(hits.sum()), len(hits))

    def wrong(self, place: int) -> Count:
        """The wrong hits among those that were judged, at a tolerance."""
        return self.replay.wrong_counts()[place]


@dataclass(frozen=True, slots=True)
class Group:
    """Some of the questions, at the tolerance that is taken.

    Attributes:
        name: What they have in common.
        saved: The hits among them.
        wrong: The wrong hits among those that were judged.
        seconds: That the hits saved; ``None`` where no time was recorded.
        cost: What the hits saved, in dollars; ``None`` where no cost was recorded.
    """

    name: str
    saved: Count
    wrong: Count
    seconds: float | None
    cost: float | None


@dataclass(frozen=True, slots=True)
class Findings:
    """What caches would have done with a log.

    Attributes:
        name: Name of the log's file.
        questions: Its questions.
        judge: What shows that a hit is wrong.
        error: The share of wrong hits to stay below.
        guarded: The rule of the cache of answers.
        plain: A fixed tolerance, and nothing else.
        skipped: Lines or entries that could not be read.
        remarks: About reading.
    """

    name: str
    questions: Sequence[LoggedQuestion]
    judge: Judge
    error: float
    guarded: Rule
    plain: Rule
    skipped: int
    remarks: Sequence[str]

    @property
    def pays(self) -> bool:
        """Whether a tolerance is proven that saves anything."""
        taken = self.guarded.proof.taken
        return taken is not None and self.guarded.saved(taken).count > 0

    @property
    def shown(self) -> int:
        """Place of the tolerance that the parts are shown at: the same words if none is proven."""
        return self.guarded.proof.taken or 0

    @property
    def guards(self) -> str:
        """What must be equal besides the words being near, in words."""
        return "the guard" if self._only_guard else "the guard and equal documents"

    @property
    def _can_be_wrong(self) -> bool:
        return can_be_wrong(self.questions, self.judge)

    @property
    def _only_guard(self) -> bool:
        return self.judge == "documents" or all(
            question.documents is None for question in self.questions
        )

    def verdict(self) -> str:
        """The tolerance to take and what it saves, or why none can be named."""
        taken = self.guarded.proof.taken
        if self.judge is None:
            return (
                "Only hits can be reported: neither answers nor documents are recorded, so nothing "
                "shows which hits are wrong."
            )
        if self.judge == "documents":
            return (
                "No tolerance can be recommended: no answers are recorded, and documents show only "
                "some wrong hits, since two questions about one page may have different answers."
            )
        if not self._can_be_wrong:
            return (
                "No tolerance can be recommended: all recorded answers are the same, so this log "
                "shows no wrong hit."
            )
        if taken is None:
            return f"No tolerance is proven to stay below {percent(self.error)} wrong answers."
        saved, wrong = self.guarded.saved(taken), self.guarded.wrong(taken)
        total = self.total(taken)
        amounts = list(filter(None, (amount(total.seconds, "s"), amount(total.cost, "$"))))
        return (
            f"Tolerance {TOLERANCES[taken]:.2f} with {self.guards}: {percent(saved.share)} of the "
            f"calls saved ({spread(saved)}), wrong below {percent(self.error)} (seen "
            f"{percent(wrong.share)})" + (f", {' and '.join(amounts)} saved." if amounts else ".")
        )

    def advice(self) -> str:
        """What is missing for more, and what a plain tolerance would do."""
        wrong = self.guarded.wrong(0)
        same = (
            f"The same words alone save {percent(self.guarded.saved(0).share)} of the calls with "
            f"{self.guards}, which tolerance=0 serves"
        ) + (
            f", but {wrong.count:,} of {wrong.total:,} judged hits would be wrong: the recorded "
            f"{self.judge} to one question differ."
            if wrong.count
            else "."
        )
        if not self._can_be_wrong:
            return f"{same} Record the answers to see what other tolerances would spoil."
        return " ".join(filter(None, (self._missing(), same, self._without_guard())))

    def _missing(self) -> str:
        """What it would take to prove a larger tolerance."""
        proof = self.guarded.proof
        if proof.stopped is None:
            return f"{TOLERANCES[-1]:.2f} is the largest that is tried."
        at, wrong = f"{TOLERANCES[proof.stopped]:.2f}", self.guarded.wrong(proof.stopped)
        seen = f"at {at}, {wrong.count:,} of {wrong.total:,} judged hits were wrong"
        if proof.more_hits is None:
            return f"More hits will hardly prove a larger one: {seen}."
        need = (
            f"About {proof.more_hits:,} more judged hits, as rarely wrong as these, would be needed"
        )
        if wrong.total < least_hits(self.error):
            least = f"at least {least_hits(self.error):,} without a wrong one are"
            return f"There are too few hits: {seen}, and {least} needed. {need}."
        return f"The test stopped early: {seen}. {need} there."

    def _without_guard(self) -> str:
        """What a fixed tolerance alone would do."""
        shown, taken = self.shown, self.plain.proof.taken
        wrong = self.plain.wrong(shown)
        spoiled = (
            f"A tolerance of {TOLERANCES[shown]:.2f} without {self.guards} would save "
            f"{percent(self.plain.saved(shown).share)}, with {percent(wrong.share)} of the judged "
            "hits wrong"
        )
        if taken is None:
            return f"{spoiled}; none is proven for it."
        return (
            f"{spoiled}; the largest that is proven for it is {TOLERANCES[taken]:.2f}, which saves "
            f"{percent(self.plain.saved(taken).share)}."
        )

    def notes(self) -> list[str]:
        """What has to be known to read the figures."""
        judged = {
            "answers": "A hit is wrong where the two recorded answers differ in more than white "
            "space, a full stop at the end, or the capital of a word such as The. Answers that say "
            "the same in other words count as wrong.",
            "documents": "No answers are recorded for most questions: a hit is wrong where the "
            "recorded documents differ, and others may be, too. They are no part of the rule then.",
            None: "Nothing shows which hits are wrong.",
        }[self.judge]
        notes = [
            judged,
            (
                "The log is asked again in front of an empty cache that keeps everything: nothing "
                "is evicted or too old, and no entry has a cap of its own."
            ),
            "Distances are those of the bundled embedding model. Others need other tolerances.",
            (
                "Tolerances are tested from the smallest up until the first fails, with "
                f"{percent(CONFIDENCE)} confidence; those with fewer than "
                f"{least_hits(self.error):,} judged hits are left out. Intervals have "
                f"{percent(CONFIDENCE)} each. Both take hits for independent: where a few "
                "questions get most hits, they promise too much."
            ),
            "The future is taken to be like the log.",
        ]
        if any(question.time is None for question in self.questions):
            notes.append("Not all questions have a time: they are asked in the log's order.")
        for name, amounts in (
            ("time", [question.seconds for question in self.questions]),
            ("cost", [question.cost for question in self.questions]),
        ):
            missing = amounts.count(None)
            if 0 < missing < len(amounts):
                notes.append(f"{missing:,} questions have no {name}: they count as 0.")
        if self.skipped:
            notes.append(f"{self.skipped:,} lines or entries were skipped.")
        return [*notes, *self.remarks]

    def total(self, place: int) -> Group:
        """All questions, at a tolerance."""
        return self._group("all", np.ones(len(self.questions), bool), place)

    def tenants(self) -> list[Group]:
        """The tenants with the most questions; none where there is only one."""
        counts = Counter(question.tenant for question in self.questions)
        if len(counts) == 1:
            return []
        names = [name for name, _ in counts.most_common(MOST_TENANTS)]
        return self._groups({name: name or "(none)" for name in names}, lambda asked: asked.tenant)

    def hours(self) -> list[Group]:
        """The hours of the day, in UTC; none where no times are recorded."""
        names = {hour: f"{hour:02}:00" for hour in range(24)}
        return self._groups(names, lambda asked: None if asked.time is None else asked.time.hour)

    def _groups(
        self, names: dict[Any, str], part: Callable[[LoggedQuestion], object]
    ) -> list[Group]:
        parts = [part(question) for question in self.questions]
        groups = []
        for value, name in names.items():
            inside = np.array([own == value for own in parts])
            if inside.any():
                groups.append(self._group(name, inside, self.shown))
        return groups

    def _group(self, name: str, inside: NDArray[np.bool_], place: int) -> Group:
        replay = self.guarded.replay
        hits, judged = replay.hits[place] & inside, replay.judged[place] & inside
        served = [self.questions[row] for row in np.flatnonzero(hits)]
        return Group(
            name,
            Count(int(hits.sum()), int(inside.sum())),
            Count(int((replay.wrong[place] & inside).sum()), int(judged.sum())),
            _sum([question.seconds for question in self.questions], served, "seconds"),
            _sum([question.cost for question in self.questions], served, "cost"),
        )

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain data for JSON; shares are from 0 to 1, times in seconds."""
        taken = self.guarded.proof.taken
        return {
            "log": self.name,
            "questions": len(self.questions),
            "skipped": self.skipped,
            "judged_by": self.judge,
            "error": self.error,
            "confidence": CONFIDENCE,
            "tolerance": None if taken is None else TOLERANCES[taken],
            "more_hits": self.guarded.proof.more_hits,
            "plain_tolerance": (
                None if self.plain.proof.taken is None else TOLERANCES[self.plain.proof.taken]
            ),
            "at": _group_data(self.total(self.shown)) | {"tolerance": TOLERANCES[self.shown]},
            "tolerances": [
                {
                    "tolerance": tolerance,
                    "guarded": _rule_data(self.guarded, place),
                    "plain": _rule_data(self.plain, place),
                }
                for place, tolerance in enumerate(TOLERANCES)
            ],
            "tenants": [_group_data(group) for group in self.tenants()],
            "hours": [_group_data(group) for group in self.hours()],
            "notes": self.notes(),
        }


def spread(count: Count) -> str:
    """The 95 % interval of a share in words; a dash where there is nothing."""
    if not count.total:
        return "-"
    ends = [100 * end for end in count.interval()]
    return (
        "-".join(f"{end:.0f}" if end >= _WHOLE else f"{end:.1f}".removesuffix(".0") for end in ends)
        + "%"
    )


def amount(number: float | None, unit: Literal["s", "$"]) -> str | None:
    """Seconds or dollars as text; ``None`` if they are not known."""
    if number is None:
        return None
    if unit == "s":
        return f"{number:,.0f} s" if number >= 10 else f"{number:.2g} s"  # noqa: PLR2004 - digits
    return f"${number:,.2f}" if number >= _CENT or not number else f"${number:.2g}"


def _sum(
    recorded: Sequence[float | None],
    served: Sequence[LoggedQuestion],
    name: Literal["seconds", "cost"],
) -> float | None:
    if all(own is None for own in recorded):
        return None
    return float(sum(getattr(question, name) or 0.0 for question in served))


def _share_data(count: Count) -> dict[str, Any]:
    low, high = count.interval()
    return {
        "count": count.count,
        "of": count.total,
        "share": count.share if count.total else None,
        "interval": [low, high],
    }


def _rule_data(rule: Rule, place: int) -> dict[str, Any]:
    return {
        "saved": _share_data(rule.saved(place)),
        "wrong": _share_data(rule.wrong(place)),
    }


def _group_data(group: Group) -> dict[str, Any]:
    return {
        "name": group.name,
        "saved": _share_data(group.saved),
        "wrong": _share_data(group.wrong),
        "seconds_saved": group.seconds,
        "dollars_saved": group.cost,
    }


TOLERANCE_HEADS = ("tolerance", "saved", "wrong", "alone: saved", "alone: wrong")
GROUP_HEADS = ("questions", "saved", "wrong", "time saved", "cost saved")


def report_of(findings: Findings) -> Report:
    """Return the report."""
    return Report(
        question="What would a cache of answers serve?",
        lead=f"What a cache of answers would have served on the questions in {findings.name}, and "
        "what of it was another question's.",
        name=findings.name,
        pays=findings.pays,
        verdict=findings.verdict(),
        advice=findings.advice(),
        notes=findings.notes(),
        tiles=_tiles(findings),
        charts=charts(findings),
        sections=_sections(findings),
    )


def _tiles(findings: Findings) -> list[Tile]:
    taken, total = findings.guarded.proof.taken, findings.total(findings.shown)
    judged = {
        "answers": "judged by their recorded answers",
        "documents": "judged by their recorded documents",
        None: "none can be judged",
    }
    return [
        Tile("Questions", f"{len(findings.questions):,}", judged[findings.judge]),
        Tile(
            "Recommended tolerance",
            "none" if taken is None else f"{TOLERANCES[taken]:.2f}",
            f"for at most {percent(findings.error)} wrong answers",
        ),
        Tile(
            "Calls saved" if taken is not None else "Calls saved by the same words",
            percent(total.saved.share),
            f"95% interval {spread(total.saved)}",
        ),
        Tile(
            "Saved",
            amount(total.seconds, "s") or amount(total.cost, "$") or "not recorded",
            f"and {amount(total.cost, '$')}"
            if total.seconds is not None and total.cost is not None
            else "",
        ),
    ]


def charts(findings: Findings) -> list[Panel]:
    """Plot the share of the calls that are saved, and of the wrong hits, by tolerance."""
    rules = {f"with {findings.guards}": findings.guarded, "tolerance alone": findings.plain}
    taken = findings.guarded.proof.taken

    def chart(title: str, note: str, counts: dict[str, list[Count]]) -> Panel:
        lines = {
            name: zip(TOLERANCES, (count.share for count in own), strict=True)
            for name, own in counts.items()
        }
        at = None if taken is None else TOLERANCES[taken]
        return comparison(title, note, "tolerance", lines, at)

    return [
        chart(
            "Calls saved",
            "Share of the questions that would have been served an earlier answer.",
            {name: list(map(rule.saved, range(len(TOLERANCES)))) for name, rule in rules.items()},
        ),
        chart(
            "Another question's",
            "Share of the judged hits that were wrong.",
            {name: rule.replay.wrong_counts() for name, rule in rules.items()},
        ),
    ]


def _sections(findings: Findings) -> list[Section]:
    """The table of all tolerances, and those of the groups that there are."""
    rows = []
    for place, tolerance in enumerate(TOLERANCES):
        shares = [
            _with_spread(count)
            for rule in (findings.guarded, findings.plain)
            for count in (rule.saved(place), rule.wrong(place))
        ]
        is_recommended = place == findings.guarded.proof.taken
        rows.append(marked((f"{tolerance:.2f}", *shares), is_recommended=is_recommended))
    at = f"at tolerance {TOLERANCES[findings.shown]:.2f}"
    groups: dict[str, tuple[str, Sequence[Group]]] = {
        f"By tenant, {at}": ("tenant", findings.tenants()),
        f"By hour of the day in UTC, {at}": ("hour", findings.hours()),
    }
    return [
        Section(
            f"By tolerance, {len(findings.questions):,} questions",
            Table(TOLERANCE_HEADS, tuple(rows)),
            f"With {findings.guards}, and with the tolerance alone; in brackets the 95% intervals.",
            every=3,
        ),
        *(
            Section(title, Table((first, *GROUP_HEADS), tuple(map(_group_row, own))))
            for title, (first, own) in groups.items()
            if own
        ),
    ]


def _group_row(group: Group) -> tuple[Cell, ...]:
    texts = (
        group.name,
        f"{group.saved.total:,}",
        _with_spread(group.saved),
        _with_spread(group.wrong),
        amount(group.seconds, "s") or "-",
        amount(group.cost, "$") or "-",
    )
    return tuple(map(Cell, texts))


def _with_spread(count: Count) -> str:
    return f"{percent(count.share)} ({spread(count)})" if count.total else "-"
