"""Pages to learn from, drawn at random without an end; the same number is the same page."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ragcache_integrations.adaptive.synthesis import DEFAULT_PROMPTS, NOT_FOUND, SEPARATOR
from ragcache_workbench.evaluation.datasets.base import SYSTEM
from ragcache_workbench.evaluation.datasets.choices import PubMedQA
from ragcache_workbench.evaluation.datasets.free_answers import QMSum

from .corpus import Asked
from .layout import Page, Question
from .library import Library
from .questions import make_question, sentences

__all__ = ["ASK", "LINKS", "Lessons"]

ASK = "Question: {question}\nAnswer:"
LINKS = (0, 8, 16, 16, 32)
"""Tokens of each document that are computed in place, of pages that are read block by block."""
OTHERS = 0.4
"""Share of the pages that begin with a passage of any source."""
RICH = 3
"""Questions about a passage from which on it is put next to others for their sake."""
BLOCKS = 0.75
"""Share of the pages that are read block by block."""
SWAPPED = 0.75
"""Share of the pages in which answers are exchanged for others of their kind, in the documents,
too, so that what is known of a passage does not help: only reading does."""
COUNTS = (1.2, 1.4, 1.4, 1.4, 3.4, 1.0)
"""How often there are one, two and more documents, in proportion."""
MOST = 20
"""Questions on a page."""
SHORTENED = 0.5
"""Share of the pages whose documents are cut to a few sentences each."""
MADE = 0.1
"""Share of the pages about which questions are made by rule, too."""
SHORTEST, LONGEST = 15, 230
"""Words of a document; what is longer is cut, what is shorter does not serve."""
SEARCH_SOURCES = {"nq": 0.55, "qed": 0.2, "nq-swap": 0.25}
"""Sources whose questions were typed into a search engine, and how often each is drawn from. In the
last one names were exchanged for others, so that reading is learnt and not what is known."""
OTHER_SYSTEMS = (
    "",
    "Answer from the documents.",
    "Answer from the documents, and from nothing else, in a few words.",
    "You are a helpful assistant.",
    "Use the following context to answer the question. Keep the answer short.",
    "Answer the question based only on the given context.",
)
OTHER_ASKS = (
    "{question}",
    "Question: {question}",
    "Question: {question}\nShort answer:",
    "Answer the question based only on the context above.\n\nQuestion: {question}",
    "Use the context above to answer.\n\nQuestion: {question}\nAnswer:",
)
SENTENCE_ASKS = (
    "Answer the question in a full sentence.\n\nQuestion: {question}\nAnswer:",
    "Question: {question}\nAnswer in one sentence:",
    "{question} Answer with a sentence from the documents.",
)
QUOTE_SYSTEM = "You answer from the documents, in full sentences."
JSON_ASKS = (
    'Answer as JSON with the key "answer".\n\nQuestion: {question}',
    'Question: {question}\nAnswer with a JSON object: {"answer": string, "found": boolean}',
)
YES_NO = (
    "Is it true that {question}? Answer yes or no.",
    "Question: Do the documents say that {question}?\nAnswer (yes or no):",
)
SUMMARY_WORDS = (20, 30, 40, 40, 40, 60)
_ASKED_FOR = re.compile(
    r"\b(?:who|whom|whose|when|where|how (?:many|much|long|old|far|tall)|(?:what|which) \w+)\b"
)
_SMALL = {"of", "the", "and", "de", "in", "for", "von", "a"}
_ARTICLE = re.compile(r"^(?:the|an?)\s+(?=\w)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Task:
    """A question and its answer; the text in which it stands, or none where nothing tells."""

    text: str
    answer: str
    document: str | None = None

    @property
    def reply(self) -> str:
        return NOT_FOUND if self.document is None else self.answer


class Lessons:
    """Draws pages.

    Args:
        library: What they are made from.
    """

    def __init__(self, library: Library) -> None:
        corpus = library.corpus
        self._library = library
        self._texts, self._titles, self._near = corpus.passages, corpus.titles, corpus.near
        self._by_place: dict[int, list[Asked]] = {}
        self._unanswerable: dict[int, list[Asked]] = {}
        for question in corpus.asked:
            text = corpus.passages[question.passage].lower()
            if any(answer.lower() in text for answer in question.answers):
                self._by_place.setdefault(question.passage, []).append(question)
            elif not question.answers:
                self._unanswerable.setdefault(question.passage, []).append(question)
        self._places = sorted(
            place for place in self._by_place if len(self._texts[place].split()) >= SHORTEST
        )
        rich = [place for place in self._places if len(self._by_place[place]) >= RICH]
        self._rich = rich or self._places
        self._by_source = {
            source: [place for place in self._places if library.sources[place] == source]
            for source in SEARCH_SOURCES
        }
        self._kinds: dict[str, list[str]] = {}
        for questions in self._by_place.values():
            for question in questions:
                answer = _bare(question.answers)
                self._kinds.setdefault(_kind(question.text, answer), []).append(answer)
        self._dice = random.Random(0)

    def page(self, name: str) -> Page:
        """The page of a name."""
        self._dice = random.Random(name)
        kinds: dict[Callable[[], Page | None], float] = {
            self._usual: 0.62,
            self._summary: 0.1,
            self._candidate: 0.05,
            self._reduced: 0.06,
            self._sentence: 0.03,
            self._json: 0.03,
            self._yes_no: 0.02,
            self._choice: 0.015,
            self._study: 0.03,
            self._meeting: 0.025,
            self._chat: 0.02,
        }
        while True:
            (kind,) = self._dice.choices(list(kinds), list(kinds.values()))
            page = kind()
            if page is not None and page.questions:
                blocks = bool(page.documents) and self._dice.random() < BLOCKS
                return replace(page, links=self._dice.choice(LINKS) if blocks else None)

    # Kinds of pages

    def _usual(self) -> Page | None:
        dice = self._dice
        places = self._drawn()
        texts, tasks = self._read(places)
        (style,) = dice.choices(("demo", "stuff", "plain", "other"), (55, 18, 14, 13))
        if style == "demo":
            system, ask, titled = SYSTEM, ASK, 0.9
        elif style == "stuff":
            system, ask, titled = DEFAULT_PROMPTS.system, DEFAULT_PROMPTS.answer, 0.6
        elif style == "plain":
            system, ask, titled = "", ASK, 0.3
        else:
            system, ask, titled = dice.choice(OTHER_SYSTEMS), dice.choice(OTHER_ASKS), 0.5
        separator = "\n\n" if style != "other" else dice.choice(("\n\n", "\n", "\n---\n"))
        documents = self._headed(places, texts, titled)
        return Page(documents, _questions(ask, tasks), system, separator)

    def _summary(self) -> Page | None:
        words = self._dice.choice(SUMMARY_WORDS)
        place, texts, tasks = self._alone()
        questions = [
            Question(
                _filled(DEFAULT_PROMPTS.summary, task.text, words),
                NOT_FOUND if task.document is None else _summary(task.answer, texts[0], words),
            )
            for task in tasks
        ]
        return self._synthesis(self._headed([place], texts, 0.7), questions)

    def _candidate(self) -> Page | None:
        place, texts, tasks = self._alone()
        return self._synthesis(
            self._headed([place], texts, 0.7), _questions(DEFAULT_PROMPTS.candidate, tasks)
        )

    def _reduced(self) -> Page | None:
        """Summaries of documents, most of which say that theirs does not tell."""
        dice = self._dice
        _, tasks = self._read(self._drawn(least=2))
        answered = [task for task in tasks if task.document is not None]
        if not answered:
            return None
        words = dice.choice(SUMMARY_WORDS)
        main, *rest = dice.sample(answered, min(len(answered), 1 + (dice.random() < 0.4)))
        summaries = [_summary(task.answer, task.document or "", words) for task in (main, *rest)]
        summaries += [NOT_FOUND] * dice.randint(0, 5 - len(summaries))
        dice.shuffle(summaries)
        content = " ".join(summaries).lower()
        others = [task for task in tasks if task.document is None or task not in (main, *rest)]
        missing = [
            replace(task, document=None) for task in others if task.answer.lower() not in content
        ]
        tasks = [main, *rest, *missing[:2]]
        return self._synthesis(tuple(summaries), _questions(DEFAULT_PROMPTS.reduce, tasks))

    def _sentence(self) -> Page | None:
        dice = self._dice
        places = self._drawn()
        texts, tasks = self._read(places)
        questions = []
        if dice.random() < 0.7:
            system, ask = dice.choice((SYSTEM, *OTHER_SYSTEMS)), dice.choice(SENTENCE_ASKS)
        else:
            system, ask = QUOTE_SYSTEM, dice.choice((ASK, "{question}"))
        for task in tasks:
            reply = task.reply if task.document is None else _telling(task.answer, task.document)
            questions.append(Question(_filled(ask, task.text), reply))
        return Page(self._headed(places, texts, 0.6), tuple(questions), system)

    def _json(self) -> Page | None:
        dice = self._dice
        places = self._drawn()
        texts, tasks = self._read(places)
        ask = dice.choice(JSON_ASKS)
        questions = []
        for task in tasks:
            content: dict[str, object] = {"answer": task.reply}
            if "found" in ask:
                content["found"] = task.document is not None
            questions.append(Question(_filled(ask, task.text), json.dumps(content)))
        system = dice.choice((SYSTEM, DEFAULT_PROMPTS.system, *OTHER_SYSTEMS))
        return Page(self._headed(places, texts, 0.6), tuple(questions), system)

    def _yes_no(self) -> Page | None:
        dice = self._dice
        places = self._drawn()
        texts, tasks = self._read(places)
        answers = [task.answer for task in tasks if task.document is not None]
        questions = []
        for _ in range(8):
            made = make_question(dice.choice(texts), dice)
            if made is None or len(made.sentence.split()) > 30 or len(answers) < 2:
                continue
            claim, true = made.sentence.rstrip(".!?"), dice.random() < 0.5
            if not true:
                other = dice.choice(answers)
                if made.answer[0].isdigit():
                    other = re.sub(r"\d", lambda _: str(dice.randint(0, 9)), made.answer)
                if other.lower() in made.sentence.lower():
                    continue
                claim = claim.replace(made.answer, other)
            questions.append(Question(_filled(dice.choice(YES_NO), claim), "yes" if true else "no"))
        system = dice.choice((SYSTEM, *OTHER_SYSTEMS))
        return Page(self._headed(places, texts, 0.6), tuple(questions), system)

    def _choice(self) -> Page | None:
        dice = self._dice
        places = self._drawn(least=2)
        texts, tasks = self._read(places)
        answers = sorted({task.answer for task in tasks if task.document is not None})
        questions = []
        for task in tasks:
            others = [answer for answer in answers if answer != task.answer]
            if task.document is None or len(others) < 3:
                continue
            options = [task.answer, *dice.sample(others, 3)]
            dice.shuffle(options)
            listed = "\n".join(f"{'ABCD'[at]}. {option}" for at, option in enumerate(options))
            questions.append(
                Question(f"{task.text}\n{listed}\nAnswer:", "ABCD"[options.index(task.answer)])
            )
        return Page(self._headed(places, texts, 0.6), tuple(questions), dice.choice(OTHER_SYSTEMS))

    def _study(self) -> Page | None:
        """Paragraphs of abstracts, as a search finds them: not all are of the one that is asked."""
        dice = self._dice
        if not self._library.studies:
            return None
        studies = dice.sample(self._library.studies, min(2, len(self._library.studies)))
        paragraphs = [
            (study, paragraph)
            for study, most in zip(studies, (3, 2), strict=False)
            for paragraph in dice.sample(study.paragraphs, min(most, len(study.paragraphs)))
        ]
        dice.shuffle(paragraphs)
        documents = tuple(_capped(paragraph) for _, paragraph in paragraphs)
        if dice.random() < 0.7:
            ask = f"Question: {{question}}\n{PubMedQA.cue}"
            system = PubMedQA.system
            replies = [study.decision for study in studies]
        else:
            ask, system = dice.choice(SENTENCE_ASKS), dice.choice(OTHER_SYSTEMS)
            replies = [study.conclusion for study in studies]
        questions = tuple(
            Question(_filled(ask, study.text), answer)
            for study, answer in zip(studies, replies, strict=True)
        )
        return Page(documents, questions, system)

    def _meeting(self) -> Page | None:
        dice = self._dice
        if not self._library.meetings:
            return None
        meeting = dice.choice(self._library.meetings)
        queries = [query for query in meeting.queries if query[2]]
        if not queries:
            return None
        _, _, telling = dice.choice(queries)
        chosen = sorted(telling)[:2]
        while len(chosen) < 2 and len(meeting.parts) > 2:
            other = dice.randrange(len(meeting.parts))
            chosen += [other] if other not in chosen else []
        dice.shuffle(chosen)
        questions = tuple(
            Question(_filled(ASK, text), " ".join(answer.split()[:90]))
            for text, answer, parts in queries
            if parts and set(parts[:2]) <= set(chosen)
        )
        return Page(tuple(meeting.parts[at] for at in chosen), questions[:4], QMSum.system)

    def _chat(self) -> Page | None:
        """A question behind others and their answers."""
        dice = self._dice
        places = self._drawn()
        texts, tasks = self._read(places)
        if len(tasks) < 3:
            return None
        ask = dice.choice((ASK, "{question}", "Question: {question}"))
        first, *others = tasks
        before = ((_filled(ask, first.text), first.reply),)
        later = dice.choice((ask, "{question}"))
        questions = tuple(
            Question(_filled(later, task.text), task.reply, before) for task in others[:6]
        )
        system = dice.choice((SYSTEM, *OTHER_SYSTEMS))
        return Page(self._headed(places, texts, 0.6), questions, system)

    def _synthesis(self, documents: tuple[str, ...], questions: Iterable[Question]) -> Page:
        return Page(documents, tuple(questions), DEFAULT_PROMPTS.system, SEPARATOR)

    # Passages and questions

    def _drawn(self, least: int = 1) -> list[int]:
        """Passages for a page: near to each other, or not."""
        dice = self._dice
        (count,) = dice.choices(range(1, 1 + len(COUNTS)), COUNTS)
        count = max(least, count)
        pool = self._pool()
        first = dice.choice(pool)
        places = [first]
        near = [place for place in self._near[first] if self._differs(place, places)]
        kind = dice.random()
        # The nearest are what a search finds; neighbours with questions bring these along.
        known = [place for place in near if place in self._by_place]
        rich = [place for place in known if len(self._by_place[place]) >= RICH]
        if kind < 0.35:
            places += near[: count - 1]
        elif kind < 0.6:
            places += dice.sample(rich, min(len(rich), count - 1))
        elif kind < 0.85:
            places += dice.sample(known, min(len(known), count - 1))
        pool = pool if dice.random() < 0.5 else self._rich
        for _ in range(10 * count):
            if len(places) >= count:
                break
            other = dice.choice(pool)
            if other not in places and self._differs(other, places):
                places.append(other)
        dice.shuffle(places)
        return places

    def _pool(self) -> list[int]:
        """The passages of one source, or all that have questions."""
        dice = self._dice
        if dice.random() < OTHERS:
            return self._places
        (source,) = dice.choices(list(SEARCH_SOURCES), list(SEARCH_SOURCES.values()))
        return self._by_source[source] or self._places

    def _differs(self, place: int, others: Sequence[int]) -> bool:
        """Whether a passage answers no question that another answers otherwise (NQ-Swap)."""
        theirs = {
            question.text.lower() for other in others for question in self._by_place.get(other, ())
        }
        ours = self._by_place.get(place, ())
        return all(question.text.lower() not in theirs for question in ours)

    def _alone(self) -> tuple[int, list[str], list[_Task]]:
        """One passage, with as many questions that it does not answer as others."""
        place = self._dice.choice(self._pool())
        texts, tasks = self._read([place], missing=0.5)
        return place, texts, tasks

    def _read(self, places: Sequence[int], missing: float = 0.12) -> tuple[list[str], list[_Task]]:
        """Texts of passages, and questions about them; that share of them is answered nowhere."""
        dice = self._dice
        longest = dice.choice((2, 3, 4)) if dice.random() < SHORTENED else None
        texts = [self._cut(self._texts[place], longest) for place in places]
        each = max(4, MOST // len(places))
        tasks: list[_Task] = []
        for place, text in zip(places, texts, strict=True):
            about = self._by_place.get(place, [])
            for question in dice.sample(about, min(each, len(about))):
                answers = list(_worded(question.answers, text))
                if answers:
                    tasks.append(_Task(_varied(question.text, dice), _bare(answers), text))
        if dice.random() < MADE:
            for _ in range(2):
                text = dice.choice(texts)
                made = make_question(text, dice)
                if made is not None:
                    tasks.append(_Task(made.text, _bare([made.answer]), text))
        dice.shuffle(tasks)
        tasks = tasks[:MOST]
        if dice.random() < SWAPPED:
            texts, tasks = self._exchanged(texts, tasks)
        wanted = missing / (1 - missing) * max(1, len(tasks))
        count = int(wanted) + (dice.random() < wanted % 1)
        content = " ".join(texts).lower()
        for _ in range(count):
            other = self._missing(places, content)
            if other is not None:
                tasks.append(other)
        dice.shuffle(tasks)
        return texts, tasks

    def _exchanged(
        self, texts: Sequence[str], tasks: Sequence[_Task]
    ) -> tuple[list[str], list[_Task]]:
        """The same with other answers, in the texts, too."""
        dice = self._dice
        questions = " ".join(task.text.lower() for task in tasks)
        new, answers = list(texts), [task.answer for task in tasks]
        homes = [texts.index(task.document or "") for task in tasks]
        for place, answer in enumerate(answers):
            kind = _kind(tasks[place].text, answer)
            if not kind or answer.lower() in questions:
                continue
            other = dice.choice(self._kinds.get(kind, [answer]))
            standing = re.compile(rf"(?<!\w){re.escape(answer)}(?!\w)")
            if any(other.lower() in text.lower() for text in new):
                continue
            changed = [standing.sub(other.replace("\\", r"\\"), text) for text in new]
            rest = [*answers[:place], other, *answers[place + 1 :]]
            # Answers that overlap with this one, and other ways to write it, stand in its way.
            if all(
                said in changed[home] for said, home in zip(rest, homes, strict=True)
            ) and not any(answer.lower() in text.lower() for text in changed):
                new, answers = changed, rest
        return new, [
            replace(task, answer=answer, document=new[home])
            for task, answer, home in zip(tasks, answers, homes, strict=True)
        ]

    def _missing(self, places: Sequence[int], content: str) -> _Task | None:
        """A question about another passage, a near one in most cases."""
        dice = self._dice
        near = [
            place
            for here in places
            for place in self._near[here]
            if place in self._by_place and place not in places
        ]
        if dice.random() < 0.05:
            about = [question for place in places for question in self._unanswerable.get(place, ())]
            if about:
                return _Task(dice.choice(about).text, NOT_FOUND)
        place = dice.choice(near) if near and dice.random() < 0.5 else dice.choice(self._pool())
        if place in places:
            return None
        question = dice.choice(self._by_place[place])
        if any(answer.lower() in content for answer in question.answers):
            return None
        return _Task(_varied(question.text, dice), _bare(question.answers))

    def _headed(self, places: Sequence[int], texts: Sequence[str], share: float) -> tuple[str, ...]:
        """Texts behind their titles, in that share of the cases."""
        if self._dice.random() >= share:
            return tuple(texts)
        return tuple(
            f"{self._titles[place]}\n{text}" if self._titles[place] else text
            for place, text in zip(places, texts, strict=True)
        )

    def _cut(self, passage: str, longest: int | None) -> str:
        parts = sentences(passage)
        if longest is None or len(parts) <= longest:
            return _capped(passage)
        begin = self._dice.randrange(len(parts) - longest + 1)
        return _capped(" ".join(parts[begin : begin + longest]))


def _kind(question: str, answer: str) -> str:
    """What is asked for, and the look of the answer; empty where it is no name and no number."""
    match = _ASKED_FOR.search(question.lower())
    words = [word for word in answer.split() if word not in _SMALL]
    if match is None or not all(word[0].isupper() or word[0].isdigit() for word in words):
        return ""
    shape = " ".join(re.sub(r"\d", "9", word) if word[0].isdigit() else "A" for word in words[:3])
    return f"{match[0]}: {shape}"


def _worded(answers: Iterable[str], text: str) -> Iterator[str]:
    """Answers that a text holds, in the case in which it does."""
    for answer in answers:
        match = re.search(re.escape(answer), text, re.IGNORECASE)
        if match is not None:
            yield match[0]


def _questions(ask: str, tasks: Iterable[_Task]) -> tuple[Question, ...]:
    return tuple(Question(_filled(ask, task.text), task.reply) for task in tasks)


def _filled(ask: str, question: str, words: int = 0) -> str:
    return ask.replace("{words}", str(words)).replace("{question}", question)


def _bare(answers: Iterable[str]) -> str:
    """The shortest answer without its article, which what is judged ignores."""
    answer = min(answers, key=len)
    return _ARTICLE.sub("", answer).rstrip(".,;") or answer


def _varied(question: str, dice: random.Random) -> str:
    """A question in the cases and with the marks that people write it with."""
    if question.endswith("?"):
        kind = dice.random()
        if kind < 0.25:
            return question.rstrip("? ").lower()
        return question.rstrip("? ") if kind < 0.35 else question
    return f"{question}?" if dice.random() < 0.15 else question


def _telling(answer: str, text: str) -> str:
    """The sentence that holds an answer."""
    holding = [part for part in sentences(text) if answer.lower() in part.lower()]
    return holding[0] if holding else answer


def _summary(answer: str, text: str, words: int) -> str:
    """An answer and the sentence that tells it, of at most so many words."""
    return " ".join(f"{answer}: {_telling(answer, text)}".split()[:words])


def _capped(text: str) -> str:
    words = text.split(" ")
    return text if len(words) <= LONGEST else " ".join(words[:LONGEST])
