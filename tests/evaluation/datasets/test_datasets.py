from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Self

import pytest
from typing_extensions import override

from ragcache_integrations.errors import ConfigurationError, MissingExtraError
from ragcache_workbench.evaluation.datasets.base import (
    Answer,
    EvalDataset,
    EvalDocument,
    EvalPrompt,
    EvalQuestion,
    Scored,
    load_dataset,
)
from ragcache_workbench.evaluation.datasets.free_answers import SUBSETS
from ragcache_workbench.evaluation.datasets.metrics import exact_match, token_f1
from ragcache_workbench.evaluation.datasets.published import chunked
from tests.evaluation.datasets.files import LONGBENCH, MUSIQUE

SIZES = {
    "nq": (300, 1200),
    "mmlu": (120, 1200),
    "pubmedqa": (60, 193),
    "qmsum": (10, 15),
    "squad": (390, 40),
    "tatqa": (240, 246),
}


@pytest.mark.parametrize("name", SIZES)
def test_the_bundled_sample(name: str) -> None:
    dataset = load_dataset(name)
    assert (len(dataset.questions), len(dataset.documents)) == SIZES[name]
    ids = {document.id for document in dataset.documents}
    right = []
    for question in dataset.questions:
        assert set(question.gold_documents) <= ids
        prompt = dataset.prompt(question, "in other words")
        assert "in other words" in prompt.after
        answer = Answer(question.answers[0])
        if dataset.chooses:
            assert set(question.answers) <= set(question.options)
            answer = Answer("", {f" {question.answers[0]}": -0.1})
        scored = dataset.score(question, answer)
        assert tuple(scored.scores) == dataset.metrics
        right.append(scored)
    assert {value for one in right for value in one.scores.values()} == {1.0}
    together = dataset.summary_scores(dataset.questions, right)
    assert together == ({"macro_f1": 1.0} if name == "pubmedqa" else {})
    assert all(
        set(dataset.score(question, Answer("quite wrong")).scores.values()) == {0.0}
        for question in dataset.questions
    )


def write_nq(folder: Path, *, packed: bool = False) -> None:
    folder.mkdir(parents=True)
    passages = [
        {"id": "p1", "title": "Rome", "text": "Rome is in Italy.\u2028It is old."},
        {"id": "p2", "title": "Bern", "text": "Bern is in Switzerland."},
        {"id": "p3", "title": "Bern", "text": "Bern is in Switzerland."},
    ]
    questions = [
        {"question": "where is rome", "answers": ["Italy", "in Italy"], "passage_id": "p1"},
        {"question": "where is bern", "answers": ["Switzerland"]},
    ]
    for name, rows in (("passages.jsonl", passages), ("questions.jsonl", questions)):
        content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)


@pytest.mark.parametrize("packed", [False, True])
def test_natural_questions_from_a_path(tmp_path: Path, packed: bool) -> None:
    write_nq(tmp_path / "nq", packed=packed)
    for path in (tmp_path, tmp_path / "nq"):
        dataset = load_dataset("nq", path)
        assert [question.text for question in dataset.questions] == [
            "where is rome",
            "where is bern",
        ]
        assert dataset.questions[0].gold_documents == ("p1",)
        assert [document.id for document in dataset.documents] == ["p1", "p2", "p3"]
        assert dataset.documents[0].text == "Rome\nRome is in Italy.\u2028It is old."


def test_your_own_data_has_its_own_name(tmp_path: Path) -> None:
    for folder, title in (("nq", "Natural Questions"), ("support", "support")):
        write_nq(tmp_path / folder)
        assert load_dataset("nq", tmp_path / folder).title == title
    assert load_dataset("nq", tmp_path).title == load_dataset("nq").title == "Natural Questions"


def write_mmlu(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "logic_dev.csv").write_text('"A line\nand another?",1,2,3,4,D\nQ?,a,b,c,d,A\n')
    (folder / "logic_test.csv").write_text("Why?,because,so,if,then,B\n")


def test_mmlu_from_a_path(tmp_path: Path) -> None:
    write_mmlu(tmp_path / "mmlu")
    dataset = load_dataset("mmlu", tmp_path)
    (question,) = dataset.questions
    assert (question.text, question.choices) == ("Why?", ("because", "so", "if", "then"))
    assert (question.answers, question.group) == (("B",), "logic")
    before = dataset.prompt(question, question.text).before
    assert "A line\nand another?\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer: D\n\n" in before
    assert len(dataset.documents) == 1200  # none beside it: the bundled ones
    write_nq(tmp_path / "nq")
    assert len(load_dataset("mmlu", tmp_path).documents) == 3
    other = tmp_path / "mine.jsonl"
    other.write_text(json.dumps({"id": 'x"', "text": "only text"}) + "\n")
    assert load_dataset("mmlu", tmp_path, other).documents == (EvalDocument('x"', "only text"),)


def write_pubmedqa(folder: Path, **changes: Any) -> None:
    folder.mkdir(parents=True)
    entry = {"QUESTION": "Does it?", "CONTEXTS": ["One.", "Two."], "final_decision": "maybe"}
    entries = {"1": entry, "2": entry | {"QUESTION": "And this?"} | changes}
    (folder / "ori_pqal.json").write_text(json.dumps(entries))


def test_pubmedqa_from_a_path(tmp_path: Path) -> None:
    write_pubmedqa(tmp_path / "pubmedqa")
    dataset = load_dataset("pubmedqa", tmp_path)
    assert [question.answers for question in dataset.questions] == [("maybe",), ("maybe",)]
    assert [document.text for document in dataset.documents] == ["One.", "Two."]
    assert dataset.questions[1].gold_documents == ("1-0", "1-1")
    # Cut off after the first token, the answer is told by its beginning.
    assert dataset.score(dataset.questions[0], Answer("maybe")).scores == {"accuracy": 1.0}


def test_qmsum_is_cut_between_turns(tmp_path: Path) -> None:
    turns = [{"speaker": f"S{one}", "content": "word " * 100} for one in range(10)]
    row = {
        "meeting_transcripts": turns,
        "general_query_list": [{"query": "What was it about?", "answer": "Words."}],
        "specific_query_list": [
            {"query": "And then?", "answer": "More.", "relevant_text_span": [["3", "5"]]}
        ],
    }
    (tmp_path / "qmsum").mkdir()
    (tmp_path / "qmsum" / "val.jsonl").write_text(json.dumps(row) + "\n")
    dataset = load_dataset("qmsum", tmp_path)
    assert [len(document.text.split("\n")) for document in dataset.documents] == [4, 4, 2]
    assert dataset.questions[0].gold_documents == ()
    assert dataset.questions[1].gold_documents == ("meeting-0-0", "meeting-0-1")


def test_chunks() -> None:
    assert chunked(["x" * 9] * 5, size=20) == [(0, 2), (2, 4), (4, 5)]
    assert chunked(["x" * 100, "y"], size=20) == [(0, 1), (1, 2)]
    assert chunked([]) == []


def test_samples() -> None:
    dataset = load_dataset("nq")
    some = dataset.sampled(20, 1)
    assert len(some) == 20
    assert some == dataset.sampled(20, 1) != dataset.sampled(20, 2)
    places = [dataset.questions.index(one) for one in some]
    assert places == sorted(places)
    assert dataset.sampled(None, 1) == dataset.questions
    for count in (0, 301):
        with pytest.raises(ConfigurationError, match=f"from 1 to the 300 questions, got {count}"):
            dataset.sampled(count, 0)


def test_a_sample_is_asked_over_what_answers_it_and_a_few_others() -> None:
    dataset = load_dataset("nq")
    questions = dataset.sampled(30, 1)
    documents = dataset.documents_of(questions, 1)
    ids = [document.id for document in documents]
    assert len(set(ids)) == 300
    assert {name for question in questions for name in question.gold_documents} <= set(ids)
    assert [document for document in dataset.documents if document in documents] == list(documents)
    assert documents == dataset.documents_of(questions, 1) != dataset.documents_of(questions, 2)
    assert len(dataset.documents_of(questions[:1], 1)) == 100
    assert dataset.documents_of(dataset.questions, 1) == dataset.documents


def test_all_documents_where_it_is_unknown_which_of_them_answer() -> None:
    dataset = load_dataset("mmlu")
    assert dataset.documents_of(dataset.sampled(3, 1), 1) == dataset.documents


# Bad input


def broken(name: str, edit: Callable[[Path], object]) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        writers = {"nq": write_nq, "mmlu": write_mmlu, "pubmedqa": write_pubmedqa}
        writers[name](folder / name)
        edit(folder / name)
        return name

    return make


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda _: "trivia", "one of nq, mmlu, .*, finqa, got 'trivia'; did you mean 'triviaqa'"),
        (lambda _: "nq", "must be a folder with questions.jsonl, also as .gz, .* it has no files"),
        (lambda _: "qmsum", "with val.jsonl, test.jsonl, train.jsonl.*Yale-LILY/QMSum"),
        (broken("nq", lambda one: (one / "passages.jsonl").unlink()), "must hold passages.jsonl"),
        (broken("nq", lambda one: (one / "questions.jsonl").write_text("{")), "not in its format"),
        (broken("nq", lambda one: (one / "questions.jsonl").write_text("[1]")), "JSON object"),
        (
            broken("nq", lambda one: (one / "questions.jsonl").write_text('{"question": ""}')),
            "'question' must be a text",
        ),
        (
            broken(
                "nq",
                lambda one: (one / "questions.jsonl").write_text('{"question": "x", "answers": 1}'),
            ),
            "'answers' must be a list of texts",
        ),
        (broken("nq", lambda one: (one / "questions.jsonl").write_text("")), "has no questions"),
        (
            broken("nq", lambda one: (one / "questions.jsonl").write_bytes(b"\xff")),
            "not in its format",
        ),
        (
            broken("nq", lambda one: (one / "passages.jsonl").rename(one / "passages.jsonl.gz")),
            "passages.jsonl.gz",
        ),
        (
            broken("mmlu", lambda one: (one / "logic_test.csv").write_text("Q?,a,b,c,d,E\n")),
            "four options and one of A, B, C, D",
        ),
        (
            broken("mmlu", lambda one: (one / "logic_test.csv").write_text('"Q?,a\n')),
            "logic_test.csv",
        ),
        (
            broken("pubmedqa", lambda one: (one / "ori_pqal.json").write_text("[]")),
            "not in its format",
        ),
    ],
)
def test_bad_data_is_named(make: Callable[[Path], str], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=words):
        load_dataset(make(tmp_path), tmp_path)


def test_a_wrong_decision_is_named(tmp_path: Path) -> None:
    write_pubmedqa(tmp_path / "pubmedqa", final_decision="perhaps")
    with pytest.raises(ConfigurationError, match="one of yes, no, maybe, got 'perhaps'"):
        load_dataset("pubmedqa", tmp_path)


def test_ids_that_come_twice() -> None:
    question, document = EvalQuestion("1", "?", ("x",)), EvalDocument("d", "text")
    with pytest.raises(ConfigurationError, match="got 2 with 1 different ids"):
        Own([question, question], [document], "here")
    with pytest.raises(ConfigurationError, match="from here has no documents"):
        Own([question], [], "here")


# The hub, by a local stand-in for its library, which is not installed here: it has the rows that
# the real data sets have there, two of each.

HUB: dict[tuple[str, str | None, str], list[dict[str, Any]]] = {
    ("google-research-datasets/nq_open", None, "validation"): [
        {"question": "where is rome", "answer": ["Italy"]},
        {"question": "where is bern", "answer": ["Switzerland"]},
    ],
    ("cais/mmlu", "all", "dev"): [
        {"question": "Q?", "subject": "logic", "choices": ["1", "2", "3", "4"], "answer": 3}
    ],
    ("cais/mmlu", "all", "test"): [
        {"question": "Why?", "subject": "logic", "choices": ["1", "2", "3", "4"], "answer": 1}
    ],
    ("qiaojin/PubMedQA", "pqa_labeled", "train"): [
        {
            "pubid": 21645374,
            "question": "Does it?",
            "context": {"contexts": ["One.", "Two."], "labels": [], "meshes": []},
            "final_decision": "no",
        }
    ],
    ("rajpurkar/squad_v2", None, "validation"): [
        {
            "id": "56a",
            "title": "Rome",
            "context": "Rome is in Italy.",
            "question": "Where is Rome?",
            "answers": {"text": ["Italy", "Italy"], "answer_start": [11, 11]},
        },
        {
            "id": "56b",
            "title": "Rome",
            "context": "Rome is in Italy.",
            "question": "Where is Bern?",
            "answers": {"text": [], "answer_start": []},
        },
    ],
    ("mandarjoshi/trivia_qa", "rc.wikipedia", "validation"): [
        {
            "question": "Which musical?",
            "question_id": "tc_33",
            "entity_pages": {
                "doc_source": ["TagMe"],
                "filename": ["Webber.txt"],
                "title": ["Webber"],
                "wiki_context": ["On Sunset Boulevard."],
            },
            "search_results": {"title": [], "search_context": []},
            "answer": {
                "aliases": ["Sunset Boulevard"],
                "normalized_aliases": ["sunset boulevard"],
                "value": "Sunset Boulevard",
            },
        }
    ],
    ("hotpotqa/hotpot_qa", "distractor", "validation"): [
        {
            "id": "5a8",
            "question": "Where?",
            "answer": "Kansas",
            "type": "bridge",
            "supporting_facts": {"title": ["B"], "sent_id": [0]},
            "context": {"title": ["A", "B"], "sentences": [["No."], ["In ", "Kansas."]]},
        }
    ],
    ("me/2wiki", None, "validation"): [
        {
            "_id": "5a9",
            "question": "Where?",
            "answer": "Kansas",
            "type": "bridge",
            "supporting_facts": {"title": ["B"], "sent_id": [0]},
            "context": {"title": ["A", "B"], "content": [["No."], ["In", "Kansas."]]},
        }
    ],
    ("dgslibisey/MuSiQue", None, "validation"): MUSIQUE[:1],
    **{
        ("THUDM/LongBench", name, "test"): [LONGBENCH["trec"][0] | {"dataset": name, "_id": name}]
        for name in SUBSETS
    },
    ("me/meetings", None, "validation"): [
        {
            "meeting_transcripts": [{"speaker": "A", "content": "Hello."}],
            "general_query_list": [{"query": "What?", "answer": "A greeting."}],
            "specific_query_list": [],
        }
    ],
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str, config: str | None, *, split: str) -> list[dict[str, Any]]:
        if (name, config, split) not in HUB:
            msg = f"Dataset '{name}' doesn't exist on the Hub or cannot be accessed."
            raise FileNotFoundError(msg)
        return HUB[name, config, split]

    stand_in = ModuleType("datasets")
    stand_in.load_dataset = load  # type: ignore[attr-defined]  # it is made here
    monkeypatch.setitem(sys.modules, "datasets", stand_in)


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("name", "data", "questions", "documents"),
    [
        ("squad", "hub", 2, ["Rome\nRome is in Italy."]),
        ("triviaqa", "hub", 1, ["Webber\nOn Sunset Boulevard."]),
        ("hotpotqa", "hub", 1, ["A\nNo.", "B\nIn Kansas."]),
        ("2wikimultihopqa", "hub:me/2wiki", 1, ["A\nNo.", "B\nIn Kansas."]),
        ("musique", "hub", 1, ["A\nJohn sang.", "B\nNo.", "C\nJohn and Yoko Ono."]),
    ],
)
def test_authors_data_from_the_hub(
    name: str, data: str, questions: int, documents: list[str]
) -> None:
    dataset = load_dataset(name, data)
    assert len(dataset.questions) == questions
    assert [document.text for document in dataset.documents] == documents
    gold = {name for question in dataset.questions for name in question.gold_documents}
    assert gold
    assert gold <= {document.id for document in dataset.documents}


@pytest.mark.usefixtures("hub")
def test_all_subsets_of_longbench_from_the_hub() -> None:
    dataset = load_dataset("longbench", "hub")
    assert [question.group for question in dataset.questions] == list(SUBSETS)
    assert dataset.max_tokens == 512
    with pytest.raises(ConfigurationError, match=r"'answers' is missing.*paragraphs"):
        load_dataset("squad", "hub:me/2wiki")


@pytest.mark.usefixtures("hub")
def test_from_the_hub() -> None:
    assert [one.answers for one in load_dataset("nq", "hub").questions] == [
        ("Italy",),
        ("Switzerland",),
    ]
    assert len(load_dataset("nq", "hub").documents) == 1200
    (question,) = load_dataset("mmlu", "hub").questions
    assert question.answers == ("B",)
    assert "Q?" in load_dataset("mmlu", "hub").prompt(question, "Why?").before
    pubmedqa = load_dataset("pubmedqa", "hub")
    assert pubmedqa.questions[0].id == "pubmedqa-21645374"
    assert len(pubmedqa.documents) == 2
    assert len(load_dataset("qmsum", "hub:me/meetings").documents) == 1
    for name, data, words in (
        ("nq", "hub:me/nothing", "doesn't exist on the Hub"),
        ("nq", "hub: ", "must be followed by the name"),
        ("qmsum", "hub", "name a copy"),
        ("nq", "hub:me/meetings", "'question' must be a text"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            load_dataset(name, data)


def test_the_hubs_library_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match="pip install datasets"):
        load_dataset("nq", "hub")


# A data set of your own.


class Own(EvalDataset):
    """Questions with several gold documents."""

    name, title, max_tokens = "own", "Own", 32
    metrics: ClassVar[tuple[str, ...]] = ("exact_match", "f1")

    @classmethod
    @override
    def load(cls, data: str, documents: Path | None = None) -> Self:
        raise NotImplementedError

    @override
    def prompt(self, question: EvalQuestion, wording: str) -> EvalPrompt:
        return EvalPrompt("", "", wording)

    @override
    def score(self, question: EvalQuestion, answer: Answer) -> Scored:
        return Scored(
            {
                "exact_match": exact_match(answer.text, question.answers),
                "f1": token_f1(answer.text, question.answers),
            }
        )


def test_a_data_set_of_your_own() -> None:
    documents = [EvalDocument("a", "A."), EvalDocument("b", "B.")]
    hops = EvalQuestion("1", "who?", ("x",), gold_documents=("a", "b"))
    assert Own([hops], documents, "here").score(hops, Answer("x")).scores["f1"] == 1


def test_the_attribution_lies_beside_the_sample() -> None:
    data = Path(__file__).parents[3] / "workbench/ragcache_workbench/evaluation/data"
    told = (data / "ATTRIBUTION.md").read_text(encoding="utf-8")
    for one in data.glob("*.gz"):
        assert f"`{one.name}`" in told
    assert "Permission is hereby granted" in told
