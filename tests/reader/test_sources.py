"""Where the text comes from that the reader is taught with, and questions made from it."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
from pathlib import Path

from ragcache_integrations.resources import load_passages
from reader.teaching import corpus, questions, sources


def test_sentences_with_many_questions_make_passages() -> None:
    rows = ["#1", "The Nile is long.", "What is long?    The Nile\tNile", "Who sang?  nobody", "#2"]
    rows += ["It rained.", "What did it do?\trained"]
    gathered = corpus.Corpus()
    corpus.read_qamr(gathered, "\n".join(rows))
    assert " ".join(gathered.passages) == "The Nile is long. It rained."
    asked = [(one.text, one.answers) for one in gathered.asked]
    assert asked == [("What is long?", ("The Nile", "Nile")), ("What did it do?", ("rained",))]


def test_what_shares_most_is_near() -> None:
    passages = [
        "The Nile is a river in Africa, and the longest of Egypt.",
        "The Danube is a river in Europe, and the longest of Austria.",
        "Aspirin is a drug, taken for pain.",
        "Egypt lies at the Nile, in Africa.",
        "The Nile is a river of Africa, and the longest of Egypt.",
        "Ibuprofen is a drug, too, taken for pain and fever.",
        "Egypt lies at the Nile, in all of Africa.",
    ]
    near = corpus.nearest(passages, 2)
    assert near[2][0] == 5
    assert near[5][0] == 2
    # Hardly different ones count for one, and are not near themselves.
    assert all(sorted(near[one]) in ([1, 3], [1, 6]) for one in (0, 4))
    assert all(len(set(one)) == len(one) <= 2 for one in near)
    assert corpus.nearest(["alone", ""], 3) == [[], []]


def test_clones_are_brought_into_the_format_of_squad(tmp_path: Path) -> None:
    clone = tmp_path / "clones" / "google-research-datasets+QED"
    clone.mkdir(parents=True)
    row = {
        "title_text": "A play",
        "question_text": "who was it",
        "paragraph_text": "It was Ann ( a king 's child ) .",
        "original_nq_answers": [[{"string": "Ann ( a king 's child )"}], [{"string": "Ann"}]],
    }
    (clone / "qed-dev.jsonlines").write_text(json.dumps(row))
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        names = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        subprocess.run(["git", "-C", str(clone), *names, *command], check=True)
    assert sources.gather(clone.parent, tmp_path / "out") == {"qed": 1}
    written = json.loads((tmp_path / "out" / "qed.json").read_text())
    (article,) = written["data"]
    assert article["title"] == "A play"
    (paragraph,) = article["paragraphs"]
    assert paragraph["context"] == "It was Ann (a king's child)."
    answers = [one["text"] for one in paragraph["qas"][0]["answers"]]
    assert answers == ["Ann (a king's child)", "Ann"]


def test_questions_ask_for_what_stands_there() -> None:
    dice = random.Random(1)
    passages = [passage.text for passage in load_passages()[:300]]
    made = [questions.make_question(one, dice) for one in passages for _ in range(3)]
    asked = [one for one in made if one is not None]
    assert len(asked) > 0.9 * len(made)
    for passage, one in zip(itertools.chain(*([p] * 3 for p in passages)), made, strict=True):
        if one is not None:
            assert one.answer in one.sentence
            assert one.sentence in passage
    told = sum(one.answer.lower() in one.text.lower().split() for one in asked)
    assert told < 0.05 * len(asked), "the answer is not in the question"
