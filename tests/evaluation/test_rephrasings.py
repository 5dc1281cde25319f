"""Rephrasings by a model: checked, kept in a file, and the same for all runs of a stream."""

from __future__ import annotations

import hashlib
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk, BaseMessage
from llama_index.core.llms import MockLLM
from typing_extensions import override

from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.evaluation import (
    Answer,
    EvalRun,
    evaluate,
    evaluate_grid,
    load_dataset,
    write_report,
)
from ragcache_workbench.evaluation.records import Rephrasing, RephrasingsFile
from ragcache_workbench.evaluation.rephrasings import SYSTEM, is_same_answer, unfit
from ragcache_workbench.evaluation.workloads import normal_form
from tests.benchmarks.papers.made import run_preset
from tests.evaluation.world import Echo, make_retriever
from tests.support.room import room_for

QUESTIONS = {
    question.text: question for name in ("nq", "squad") for question in load_dataset(name).questions
}
COUNT = 5
STREAM: dict[str, Any] = {
    "retriever": make_retriever,
    "workload": "zipf",
    "rephrasing": "model",
    "sample": COUNT,
    "k": 2,
}
LENGTH = 4 * COUNT
LETTERS = str.maketrans("0123456789abcdef", "ghijklmnopqrstuv")


class Rewriter(Echo):
    """Rewrites a question by words around it, and answers it by its right answer.

    Attributes:
        habit: What it does wrong: ``other`` makes about every second question another one, and
            the rest are as their names say.
        rewritten: The questions that it rewrote.
        answered: The questions that it answered; empty for one that it does not know.
        prompts: Their prompts.
    """

    habit: str = ""
    rewritten: list[str] = []  # noqa: RUF012 - pydantic copies it
    answered: list[str] = []  # noqa: RUF012 - pydantic copies it
    prompts: list[str] = []  # noqa: RUF012 - pydantic copies it

    @override
    def _words(self, messages: list[BaseMessage]) -> Iterator[AIMessageChunk]:
        self.calls.append(len(self.calls))
        if self.called is not None:
            self.called(len(self.calls))
        prompt = "\n".join(message.text for message in messages)
        # The longest, as a question may be a part of another.
        text = max((text for text in QUESTIONS if text in prompt), key=len, default="")
        if SYSTEM in prompt:
            self.rewritten.append(text)
            reply = self._rewrite(text, prompt)
        else:
            self.answered.append(text)
            self.prompts.append(prompt)
            reply = QUESTIONS[text].answers[0] if text else "not there"
        yield AIMessageChunk(content=reply, chunk_position="last")

    def _rewrite(self, text: str, prompt: str) -> str:
        # Nothing but the prompt counts, as for a model that is asked greedily.
        name = hashlib.sha256(prompt.encode()).hexdigest()[:8].translate(LETTERS)
        match self.habit:
            case "same":
                return f" {text.upper()}?"
            case "long":
                return f"{text} " * 4
            case "lines":
                return f"Here you are:\n{text} then"
            case "quiet":
                return ""
            case "other" if name < "m":
                return f"{text.rpartition(' ')[0]} {name}"
            case _:
                return f'Rewritten question: "so {name} asks, {text}"'


def texts(run: EvalRun) -> list[str]:
    return [record.text for record in run.records]


def refused(run: EvalRun) -> dict[str, int]:
    counts: dict[str, int] = run.config["workload"]["refused"]
    return counts


def kept(out: Path) -> Path:
    (file,) = out.glob("rephrasings-nq-*.jsonl")
    return file


@pytest.fixture(scope="module")
def by_rules(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The texts of the stream as rules rephrase it."""
    knobs = {**STREAM, "rephrasing": "medium"}
    return texts(evaluate("nq", model=Echo(), out=tmp_path_factory.mktemp("rules"), **knobs))


def test_all_texts_are_the_models(tmp_path: Path, by_rules: list[str]) -> None:
    model = Rewriter()
    run = evaluate("nq", model=model, out=tmp_path, **STREAM)
    assert refused(run) == {}
    assert len(model.rewritten) == LENGTH
    # Each question in its own words once, each rephrasing once, and then the run with its warm-up.
    assert len(model.answered) == COUNT + LENGTH + LENGTH + 1
    assert len({normal_form(text) for text in texts(run)}) == LENGTH
    for record, rule in zip(run.records, by_rules, strict=True):
        assert record.text.startswith("so ")
        assert record.text != rule
        (question,) = (one for one in QUESTIONS.values() if one.id == record.question)
        assert record.text.endswith(question.text)
    assert (run.quality or {})["exact_match"] == 1
    assert [json.loads(line)["text"] for line in kept(tmp_path).read_text().split("\n")[1:-1]] == (
        texts(run)
    )


def test_answers_are_compared_over_the_passages_that_hold_them(tmp_path: Path) -> None:
    dataset = load_dataset("nq")
    passages = {document.id: document.text for document in dataset.documents}
    model = Rewriter()
    evaluate("nq", model=model, out=tmp_path, synthesis="map_reduce", max_tokens=1, **STREAM)
    compared = model.prompts[: COUNT + LENGTH]
    for text, prompt in zip(model.answered, compared, strict=False):
        (gold,) = QUESTIONS[text].gold_documents
        assert passages[gold] in prompt
        assert dataset.system in prompt, "the data set's own prompt, whatever the run has"


@pytest.mark.parametrize(
    ("habit", "reason"),
    [
        ("same", "no new words"),
        ("long", "too short or too long"),
        ("lines", "no single line"),
        ("quiet", "no single line"),
    ],
)
def test_what_is_no_rephrasing_is_made_by_rules(
    tmp_path: Path, by_rules: list[str], habit: str, reason: str
) -> None:
    model = Rewriter(habit=habit)
    run = evaluate("nq", model=model, out=tmp_path, **STREAM)
    assert texts(run) == by_rules
    assert refused(run) == {reason: LENGTH}
    assert len(model.rewritten) == 2 * LENGTH, "a second attempt for each"
    assert len(model.answered) == LENGTH + 1, "nothing to compare"


def test_another_question_is_refused(tmp_path: Path, by_rules: list[str]) -> None:
    run = evaluate("nq", model=Rewriter(habit="other"), out=tmp_path, **STREAM)
    assert set(refused(run)) == {"another answer"}
    by_model = [text for text in texts(run) if text not in by_rules]
    assert len(by_model) == LENGTH - sum(refused(run).values())
    assert all(text.startswith("so ") for text in by_model)
    page = write_report([run], tmp_path / "report", images=False).read_text()
    assert f"by the model; {sum(refused(run).values())} of {LENGTH} refused (another" in page


def test_a_model_of_llama_index_is_asked_too(tmp_path: Path) -> None:
    run = evaluate("nq", model=MockLLM(max_tokens=4), out=tmp_path, **STREAM)
    assert refused(run) == {"another subject": LENGTH}  # it says "text text text text"


def test_questions_without_an_answer_show_nothing(tmp_path: Path) -> None:
    model = Rewriter()
    run = evaluate("squad", model=model, out=tmp_path, **{**STREAM, "sample": 12})
    none = {one.id for one in load_dataset("squad").questions if one.group == "unanswerable"}
    without = sum(record.question in none for record in run.records)
    assert 0 < without < len(run.records)
    assert refused(run)["no answer"] == without


def test_every_setting_has_the_same_stream_and_nothing_is_made_twice(tmp_path: Path) -> None:
    model = Rewriter()
    runs = evaluate_grid(
        "nq", {"tolerance": [0.0, 0.9], "answer_once": [False, True]}, model=model, out=tmp_path,
        **STREAM,
    )  # fmt: skip
    assert len({run.config["workload"]["digest"] for run in runs}) == 1
    assert len(model.rewritten) == LENGTH
    again = Rewriter()
    evaluate("nq", model=again, out=tmp_path, **{**STREAM, "k": 1})
    assert again.rewritten == []
    evaluate("nq", model=again, out=tmp_path, seed=1, **STREAM)
    assert len(again.rewritten) == LENGTH, "another stream has others"
    assert len(list(tmp_path.glob("rephrasings-*"))) == 2


@pytest.mark.parametrize("habit", ["", "other"])
@pytest.mark.parametrize("at", [1, 7, 20])
def test_an_interruption_changes_nothing(tmp_path: Path, at: int, habit: str) -> None:
    def fail(call: int) -> None:
        if call == at:
            message = "broken off"
            raise RuntimeError(message)

    whole = evaluate("nq", model=Rewriter(habit=habit), out=tmp_path / "whole", **STREAM)
    first, second = Rewriter(called=fail, habit=habit), Rewriter(habit=habit)
    with pytest.raises(RuntimeError, match="broken off"):
        evaluate("nq", model=first, out=tmp_path / "broken", **STREAM)
    done = kept(tmp_path / "broken").read_bytes()
    # As if the process had been killed while it was writing.
    kept(tmp_path / "broken").write_bytes(done + b'{"number": 9, "te')
    resumed = evaluate("nq", model=second, out=tmp_path / "broken", **STREAM)
    assert texts(resumed) == texts(whole)
    assert kept(tmp_path / "broken").read_bytes() == kept(tmp_path / "whole").read_bytes()
    assert 0 < done.count(b"\n") <= at
    left = LENGTH + 1 - done.count(b"\n")
    assert left <= len(second.rewritten) <= (1 + bool(habit)) * left, "what was made, is kept"


@pytest.mark.parametrize("workload", ["zipf", "uniform"])
def test_random_weights_rephrase_nothing(tmp_path: Path, workload: str) -> None:
    model = Rewriter()
    knobs = {**STREAM, "workload": workload, "random_weights": True}
    with pytest.raises(ConfigurationError, match="rephrasing='model' needs a model that answers"):
        evaluate("nq", model=model, out=tmp_path, **knobs)
    assert model.calls == []
    assert list(tmp_path.iterdir()) == []


def test_other_streams_have_no_rephrasings_of_it(tmp_path: Path) -> None:
    model = Rewriter()
    run = evaluate("nq", model=model, out=tmp_path, **{**STREAM, "workload": "uniform"})
    assert model.rewritten == []
    assert "refused" not in run.config["workload"]


def line(number: int, **fields: Any) -> str:
    return json.dumps({"number": number, "text": "", "refused": "", **fields})


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda lines: ["{}", *lines[1:]], "its first line must be"),
        (lambda lines: [lines[0], "no JSON"], "Invalid JSON"),
        (lambda lines: [lines[0], lines[2]], "line 2 is not of question 0"),
        (lambda lines: [lines[0], line(0)], "line 2 is not of question 0"),
        (lambda lines: [lines[0], line(0, text="a b", refused="no answer")], "line 2 is not of"),
        (lambda lines: [lines[0], line(0, refused="\x1b[2J")], "refused: Input should be ''"),
        (lambda lines: [lines[0], line(0, text=7)], "valid string"),
        (lambda lines: [lines[0], line(0, text="a" * 10_001)], "at most 10000 characters"),
        (lambda lines: [lines[0], line(0, text="a b")], "question 0 is too short or too long"),
        (lambda lines: [lines[0], lines[1].replace(': "so ', ': "\\n')], "0 is no single line"),
        (
            lambda lines: [*lines[:2], lines[1].replace('"number": 0', '"number": 1')],
            "question 1 is",
        ),
        (
            lambda lines: [*lines, line(LENGTH, refused="no answer")],
            f"of {LENGTH + 1} questions of {LENGTH}",
        ),
        (lambda _: ["x" * (1 << 26)], "at most 67108864 bytes"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, damage: Any, words: str) -> None:
    evaluate("nq", model=Rewriter(), out=tmp_path, **STREAM)
    file = kept(tmp_path)
    damaged = "\n".join(damage(file.read_text().split("\n")[:-1])) + "\n"
    file.write_text(damaged)
    model = Rewriter()
    with pytest.raises(ConfigurationError, match=words):
        evaluate("nq", model=model, out=tmp_path, **STREAM)
    assert model.calls == []
    assert file.read_text() == damaged


def test_many_lines_take_little_memory(tmp_path: Path) -> None:
    head = {"model": "some"}
    RephrasingsFile(tmp_path / "file", head).close()
    with (tmp_path / "file").open("ab") as file:
        file.write(b"\n" * (1 << 24))
    tracemalloc.start()
    try:
        with pytest.raises(ConfigurationError, match="Invalid JSON"):
            RephrasingsFile(tmp_path / "file", head)
        assert tracemalloc.get_traced_memory()[1] < 1 << 27
    finally:
        tracemalloc.stop()


def test_where_there_is_no_room_the_error_says_so_and_the_file_can_be_gone_on_with(
    tmp_path: Path,
) -> None:
    head, kept = {"model": "some"}, Rephrasing(number=0, text="a" * 100)
    with room_for(250), RephrasingsFile(tmp_path / "file", head) as file:
        file.append(kept)
        with pytest.raises(ConfigurationError, match="cannot write rephrasings to"):
            file.append(Rephrasing(number=1, text="b" * 100))
    assert (tmp_path / "file").stat().st_size == 250
    with RephrasingsFile(tmp_path / "file", head) as file:
        assert file.kept == [kept]


def test_links_are_not_followed(tmp_path: Path) -> None:
    evaluate("nq", model=Rewriter(), out=tmp_path, **STREAM)
    file = kept(tmp_path)
    elsewhere = file.rename(tmp_path / "elsewhere")
    file.symlink_to(elsewhere)
    with pytest.raises(ConfigurationError, match="cannot write rephrasings"):
        evaluate("nq", model=Rewriter(), out=tmp_path, **STREAM)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    evaluate("nq", model=Rewriter(), out=tmp_path, **STREAM)
    head = json.loads(kept(tmp_path).read_text().split("\n")[0])
    del head["format"]
    with RephrasingsFile(kept(tmp_path), head) as file:
        assert len(file.kept) == LENGTH
        with pytest.raises(ConfigurationError, match="another process: wait until that ends"):
            evaluate("nq", model=Rewriter(), out=tmp_path, **STREAM)
    evaluate("nq", model=Rewriter(), out=tmp_path, **STREAM)


def test_the_same_answer() -> None:
    dataset = load_dataset("nq")
    question = next(one for one in dataset.questions if len(one.answers[0].split()) > 1)
    right = question.answers[0]

    def same(before: str, after: str) -> bool:
        return is_same_answer(dataset, question, Answer(before), Answer(after))

    assert same(right, right)
    assert same(f"it is {right}", right), "a better one"
    assert not same(right, f"it is perhaps {right}"), "a worse one"
    assert not same(right, "quite another")
    # Where the answer is wrong already, any other would be as good.
    assert same("quite another", "Quite another.")
    assert not same("quite another", "a third")
    assert not same("quite another", right)
    assert not same("", "")


def test_the_same_option() -> None:
    dataset = load_dataset("pubmedqa")
    question = dataset.questions[0]

    def likely(option: str) -> Answer:
        return Answer(option, {option: -0.1})

    assert is_same_answer(dataset, question, likely("yes"), likely("yes"))
    assert not is_same_answer(dataset, question, likely("yes"), likely("no"))
    assert not is_same_answer(dataset, question, Answer("?"), Answer("?")), "no option at all"


def test_what_may_be_a_rephrasing() -> None:
    question, taken = "who wrote the book of the dead", {"who wrote the book of the dead"}
    assert unfit("the book of the dead is by whom", question, taken) == ""
    assert unfit("Who wrote the Book of the Dead?", question, taken) == "no new words"
    assert unfit("who wrote\x00 the book", question, taken) == "no single line"
    assert unfit("?!?!?!?!?!?!", question, taken) == "no single line"
    assert unfit("\ud800 who wrote the book", question, taken) == "no single line"
    assert unfit("book", question, taken) == "too short or too long"
    assert unfit("a " * 60, question, taken) == "too short or too long"
    assert unfit("who wrote the 2 books of the dead", question, taken) == "other numbers"
    assert unfit("who wrote it in 1999", "who wrote it in 1998", taken) == "other numbers"
    assert unfit("not in the document at all", question, taken) == "another subject"
    assert unfit("x" * 10_001, "y" * 9_000, taken) == "too short or too long"


def test_a_preset_says_what_rephrased(tmp_path: Path) -> None:
    model = Rewriter()
    result = run_preset("proximity", model, tmp_path, sample=2, k=2, rephrasing="model")
    uniform, zipf, _ = result.tables
    assert uniform.notes == ()
    assert zipf.notes[0] == "Questions are rephrased by the model; 0 of 8 refused."
    assert zipf.notes[0] in result.markdown()
    assert len(model.rewritten) == 8
    rules = run_preset("proximity", Echo(), tmp_path / "b", sample=2, k=2)
    assert rules.tables[1].notes[0] == "Questions are rephrased by rules."
