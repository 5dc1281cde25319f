"""Questions in scripts and languages that the bundled embedding model hardly reads."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from ragcache_integrations.cli import command as cli
from tests.attacks.faces import (
    ANSWER_FACES,
    DATA,
    RETRIEVER_FACES,
    Pair,
    answered_for_another,
    found_for_another,
    langchain_cache,
    langchain_retriever,
    llama_index_cache,
    llama_index_retriever,
)


def _pairs() -> dict[str, list[Pair]]:
    found: dict[str, list[Pair]] = {}
    for row in json.loads((DATA / "scripts.json").read_text(encoding="utf-8")):
        pair = Pair(row["one"], row["other"], row["why"])
        found.setdefault(row["language"], []).append(pair)
    return found


PAIRS = _pairs()

# A warning that the model can't read the questions is right, and not what is tested here.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]


def test_there_are_enough() -> None:
    assert sum(map(len, PAIRS.values())) >= 40


@pytest.mark.parametrize("language", PAIRS)
@pytest.mark.parametrize("face", ANSWER_FACES)
class TestAnswers:
    @pytest.mark.parametrize("tolerance", [0.05, 0.7])
    def test_another_question_is_never_served(
        self, face: str, language: str, tolerance: float
    ) -> None:
        wrong = answered_for_another(ANSWER_FACES[face], PAIRS[language], tolerance=tolerance)
        assert wrong == []


@pytest.mark.parametrize("language", PAIRS)
class TestIdenticalText:
    def test_answers(self, language: str) -> None:
        for pair in PAIRS[language]:
            chain, engine = langchain_cache(tolerance=0.05), llama_index_cache(tolerance=0.05)
            for _ in range(2):
                assert chain.invoke(pair.one) == str(engine.query(pair.one))
            assert (chain.stats().hits, engine.stats().hits) == (1, 1)

    def test_documents(self, language: str) -> None:
        for pair in PAIRS[language]:
            one, other = langchain_retriever(), llama_index_retriever()
            for _ in range(2):
                assert one.invoke(pair.one)[0].id == other.retrieve(pair.one)[0].node.node_id
            assert (one.stats().hits, other.stats().hits) == (1, 1)


@pytest.mark.parametrize("language", PAIRS)
@pytest.mark.parametrize("face", RETRIEVER_FACES)
class TestDocuments:
    def test_another_questions_documents_are_never_served(self, face: str, language: str) -> None:
        assert found_for_another(RETRIEVER_FACES[face], PAIRS[language]) == []

    def test_one_cache_for_all(self, face: str, language: str) -> None:
        ask = RETRIEVER_FACES[face]()
        questions = [question for pair in PAIRS[language] for question in (pair.one, pair.other)]
        for _ in range(2):
            assert [ask(question) for question in questions] == questions


LOGS: dict[str, dict[str, Any]] = json.loads((DATA / "lint_logs.json").read_text(encoding="utf-8"))


def _log(language: str, folder: Path, *, question_first: bool, drawn: bool = False) -> Path:
    parts = LOGS[language]
    draw = random.Random(11)
    questions = [head + tail for head in parts["beginnings"] for tail in parts["ends"]] * 2
    draw.shuffle(questions)
    rows = []
    for question in questions:
        documents = parts["documents"]
        # In one order, the place of the question is the only fault that there can be.
        found = "\n".join(draw.sample(documents, 2) if drawn else documents[:2])
        asked, shown = (
            f"{parts['question_label']}{question}",
            f"{parts['documents_label']}\n{found}",
        )
        content = "\n".join([asked, shown] if question_first else [shown, asked])
        messages = [
            {"role": "system", "content": parts["rules"]},
            {"role": "user", "content": content},
        ]
        rows.append({"model": "m", "messages": messages})
    log = folder / f"{language}.jsonl"
    log.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    return log


@pytest.mark.parametrize("language", LOGS)
class TestLint:
    @pytest.mark.parametrize("drawn", [False, True], ids=["the same", "drawn"])
    def test_a_question_before_the_documents_is_a_fault(
        self, language: str, drawn: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        log = _log(language, tmp_path, question_first=True, drawn=drawn)
        assert cli.main(["lint", str(log)]) == 1
        assert "query-before-" in capsys.readouterr().out

    def test_a_question_after_the_documents_is_none(
        self, language: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        code = cli.main(["lint", str(_log(language, tmp_path, question_first=False))])
        assert code == 0, capsys.readouterr().out
