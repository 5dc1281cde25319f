"""How SmolLM2 is taught: pages whole and block by block, and that a run can be broken off."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from ragcache_integrations.adaptive.synthesis import NOT_FOUND
from ragcache_integrations.core.prompt import Prompt, PromptDocument, PromptRenderer
from ragcache_integrations.engine.tiny_model import default_model_path
from ragcache_integrations.resources import load_passages, load_questions
from ragcache_workbench.evaluation.datasets.base import SYSTEM
from reader.teaching import lessons, library, train
from reader.teaching.corpus import nearest
from reader.teaching.layout import Layout, Page, Question
from reader.teaching.network import Delta, Network, Rows, Shape

DOCUMENTS = tuple(f"{passage.title}\n{passage.text[:150]}" for passage in load_passages()[:3])
QUESTIONS = tuple(
    Question(f"Question: {question.text}\nAnswer:", question.answers[0])
    for question in load_questions()[:3]
)
PAGE = Page(DOCUMENTS, QUESTIONS, "Answer from the documents.")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny random model, with its embeddings shared with the head."""
    folder = tmp_path_factory.mktemp("base")
    for path in default_model_path().iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    weights = load_file(folder / "model.safetensors")
    weights.pop("lm_head.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    return folder


@pytest.fixture(scope="module")
def network(base: Path) -> Network:
    """In float32, with a delta that changes something."""
    delta = Delta(Shape.read(base), rank=4)
    for number, matrix in enumerate(delta.up.values()):
        torch.manual_seed(number)
        torch.nn.init.normal_(matrix, std=0.1)
    return Network(base, delta, torch.float32)


@pytest.fixture(scope="module")
def layout(base: Path) -> Layout:
    return Layout(AutoTokenizer.from_pretrained(base))


@pytest.fixture(scope="module")
def theirs(base: Path, network: Network) -> Any:
    """The same weights in transformers."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    model.load_state_dict(network.merged(), strict=False)
    return model


def prompt_of(base: Path, question: Question) -> tuple[list[int], list[tuple[int, int]]]:
    """What the toolkit sends, and where the documents are in it."""
    renderer = PromptRenderer(AutoTokenizer.from_pretrained(base))
    documents = [PromptDocument(text) for text in DOCUMENTS]
    rendered = renderer.render(Prompt.rag(question.text, documents, system=PAGE.system))
    return rendered.token_ids, [(span.start, span.end) for span in rendered.documents]


@torch.no_grad()
def answer_of(model: Any, prompt: list[int], spans: list[tuple[int, int]], links: int) -> list[int]:
    """Eight tokens by transformers, which reuses the KV cache of each document at its place."""
    stored = []
    for begin, end in spans:
        places = torch.arange(begin, end)[None]
        encoded = model(torch.tensor([prompt[begin:end]]), position_ids=places, use_cache=True)
        stored.append([(layer.keys, layer.values) for layer in encoded.past_key_values.layers])
    cache, at = DynamicCache(), 0

    def compute(end: int) -> torch.Tensor:
        nonlocal at
        places = torch.arange(at, end)[None]
        out = model(torch.tensor([prompt[at:end]]), position_ids=places, past_key_values=cache)
        at = end
        logits: torch.Tensor = out.logits[0, -1]
        return logits

    for (begin, end), layers in zip(spans, stored, strict=True):
        compute(min(begin + links, end))
        for number, (keys, values) in enumerate(layers):
            cache.update(keys[:, :, links:], values[:, :, links:], number)
        at = end
    logits, tokens = compute(len(prompt)), []
    for place in range(len(prompt), len(prompt) + 8):
        tokens.append(int(logits.argmax()))
        logits = model(
            torch.tensor([tokens[-1:]]), position_ids=torch.tensor([[place]]), past_key_values=cache
        ).logits[0, -1]
    return tokens


@pytest.mark.parametrize("links", [None, 0, 5, 16])
def test_what_is_learnt_is_what_is_served(
    base: Path, network: Network, layout: Layout, theirs: Any, links: int | None
) -> None:
    page = Page(PAGE.documents, PAGE.questions, PAGE.system, links=links)
    packed = layout.packed(page, answered=False)
    assert packed is not None
    answers = network.answers(packed, layout.end, 8)
    for question, answer in zip(QUESTIONS, answers, strict=True):
        prompt, spans = prompt_of(base, question)
        whole = 10_000 if links is None else links
        right = answer_of(theirs, prompt, spans, whole)
        assert answer == right[: len(answer)]
        assert len(answer) == 8 or right[len(answer)] == layout.end


def test_losses_are_those_of_each_question_alone(
    network: Network, layout: Layout, theirs: Any, base: Path
) -> None:
    packed = layout.packed(PAGE)
    assert packed is not None
    loss, _ = network.loss(packed)
    alone = 0.0
    for question in QUESTIONS:
        prompt, _ = prompt_of(base, question)
        answer = [*AutoTokenizer.from_pretrained(base).encode(question.answer), layout.end]
        logits = theirs(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        losses = torch.nn.functional.cross_entropy(logits, torch.tensor(answer), reduction="none")
        alone += float(losses.sum().detach()) / len(answer) ** 0.5
    assert float(loss.detach()) == pytest.approx(alone, rel=1e-4)


def test_links_matter_and_all_links_are_the_whole(network: Network, layout: Layout) -> None:
    losses = {}
    for links in (None, 0, 16, 10_000):
        packed = layout.packed(Page(PAGE.documents, PAGE.questions, PAGE.system, links=links))
        assert packed is not None
        losses[links] = float(network.loss(packed)[0].detach())
    assert losses[10_000] == pytest.approx(losses[None], rel=1e-4)
    assert len({round(loss, 3) for loss in losses.values()}) == 3


def test_rows_are_the_pages(network: Network, layout: Layout) -> None:
    pages = [
        layout.packed(Page(PAGE.documents[:count], PAGE.questions, PAGE.system, links=links))
        for links in (None, 0, 5, 16)
        for count in (1, 2, 3)
    ]
    packed = [page for page in pages if page is not None]
    rows = Rows.of(packed, 2 * max(len(page.tokens) for page in packed))
    assert len(packed) == 12 > len(rows.tokens)
    assert len(rows.said) == sum(len(page.said) for page in packed)
    loss, right = network.loss(rows)
    alone = [network.loss(page) for page in packed]
    assert float(loss.detach()) == pytest.approx(sum(float(one.detach()) for one, _ in alone))
    assert int(right.sum()) == sum(int(one.sum()) for _, one in alone)


@pytest.fixture(scope="module")
def text() -> library.Library:
    """The bundled sample alone, taken for what is learnt from."""
    made = library.Library()
    by_passage = {question.passage_id: question for question in load_questions()}
    for number, passage in enumerate(load_passages()[:200]):
        question = by_passage.get(passage.id)
        asked = [(question.text, question.answers)] if question else []
        asked += [
            (f"what is word {at} of {number}", (passage.text.split()[at],)) for at in (3, 5, 7)
        ]
        made.corpus.add(passage.text, asked, passage.title)
        made.sources.append("nq")
    made.corpus.near = nearest(made.corpus.passages, 4)
    made.studies = [
        library.Study("Does it help?", ("It was tried.", "It helped."), "It helps.", "yes"),
        library.Study("Is it safe?", ("It was seen.", "Nobody knows."), "Perhaps.", "maybe"),
    ]
    made.meetings = [library.Meeting(("A: yes.", "B: no."), (("What?", "Yes and no.", (0, 1)),))]
    return made


def test_pages(text: library.Library, layout: Layout) -> None:
    teacher = lessons.Lessons(text)
    pages = [teacher.page(f"1 {number}") for number in range(300)]
    assert pages[7] == teacher.page("1 7")
    answers = [question.answer for page in pages for question in page.questions]
    missing = sum("Not in the document." in answer for answer in answers)
    assert 0.1 < missing / len(answers) < 0.4
    assert {page.links for page in pages} == {None, 0, 8, 16, 32}
    assert {len(page.documents) for page in pages} >= {1, 2, 3, 4, 5, 6}
    assert sum(layout.packed(page) is not None for page in pages[:20]) > 15
    for page in pages:
        content = " ".join(page.documents)
        for question in page.questions:
            if page.system == SYSTEM and question.text.endswith("\nAnswer:"):
                assert question.answer in content or question.answer == NOT_FOUND


def test_a_library_comes_back(text: library.Library, tmp_path: Path) -> None:
    text.kept = [library.Kept("who", ("he",), "Title", "It was he.", "nq")]
    library.save(text, tmp_path / "library")
    assert library.load(tmp_path / "library") == text


def test_kept_out_questions_are_not_learnt_from(tmp_path: Path) -> None:
    data, extra = tmp_path / "data", tmp_path / "extra"
    (data / "nq").mkdir(parents=True)
    extra.mkdir()
    reported = load_questions()[0]
    passage = next(one for one in load_passages() if one.id == reported.passage_id)
    rows = [{"id": "p0", "title": passage.title, "text": passage.text}]
    rows += [{"id": f"p{at}", "title": "", "text": f"Number {at} is blue."} for at in range(1, 9)]
    content = "\n".join(map(json.dumps, rows)).encode()
    (data / "nq" / "passages.jsonl.gz").write_bytes(gzip.compress(content))
    asked = [{"question": reported.text, "answers": ["x"], "passage_id": "p0"}]
    asked += [
        {"question": f"what is {at}", "answers": ["blue"], "passage_id": f"p{at}"}
        for at in range(1, 9)
    ]
    (data / "nq" / "questions.jsonl").write_text("\n".join(map(json.dumps, asked)))
    copy = {
        "title": "Copy",
        "paragraphs": [
            {"context": f"It is said: {passage.text}", "qas": []},
            {"context": "Something else.", "qas": []},
        ],
    }
    (extra / "other.json").write_text(json.dumps({"data": [copy]}))
    made = library.gather(data, extra)
    kept = {one.passage for one in made.kept}
    assert len(kept) == 2
    learnt = set(made.corpus.passages)
    assert not learnt & (kept | {passage.text, f"It is said: {passage.text}"})
    assert len(learnt) == 8 - 2 + 1
    assert reported.text not in {one.text for one in made.corpus.asked}


def run(out: Path, base: Path, file: Path, *arguments: str) -> subprocess.Popen[bytes]:
    command = [
        *(sys.executable, "-m", "reader.teaching.train", "--library", str(file)),
        *("--base", str(base), "--out", str(out), "--pages", "2", "--rank", "2", *arguments),
    ]
    return subprocess.Popen(command, cwd=Path(__file__).parents[2])


@pytest.mark.slow
def test_a_run_goes_on_where_it_was(text: library.Library, base: Path, tmp_path: Path) -> None:
    file = tmp_path / "library"
    library.save(text, file)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert run(whole, base, file, "--until", "6", "--processes", "1").wait(300) == 0
    process = run(parts, base, file, "--processes", "1")
    losses = parts / "losses.jsonl"
    while not losses.exists() or len(losses.read_text().splitlines()) < 2:
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(300) == 0
    assert run(parts, base, file, "--until", "6", "--processes", "2").wait(300) == 0
    rows = [
        {row["step"]: row["loss"] for row in map(json.loads, path.read_text().splitlines())}
        for path in (whole / "losses.jsonl", losses)
    ]
    assert rows[0] == pytest.approx(rows[1], rel=1e-3)
    weights = [load_file(folder / "delta.safetensors") for folder in (whole, parts)]
    for name, matrix in weights[0].items():
        torch.testing.assert_close(matrix, weights[1][name], rtol=0, atol=2e-3)
    assert train.Recipe().rank == 32


def test_a_gpu_learns_the_same(text: library.Library, base: Path, tmp_path: Path) -> None:
    """On the CPU, in rows, as a GPU does."""
    file = tmp_path / "library"
    library.save(text, file)
    paths, recipe = train.Paths(file, base, tmp_path / "out", None), train.Recipe(rank=2, pages=4)
    steps = [
        [(gradient.clone(), totals) for gradient, totals in teacher.steps(3, 5)]
        for teacher in (
            train.Class(paths, recipe, 1),
            train.Accelerator(paths, recipe, 0, "cpu"),
        )
    ]
    for (first, counts), (second, others) in zip(*steps, strict=True):
        assert counts[1:3] == others[1:3]
        assert counts[0] == pytest.approx(others[0], rel=0.02)
        torch.testing.assert_close(first, second, rtol=0, atol=0.05 * float(first.abs().max()))
    train.train(
        train.Accelerator(paths, recipe, 0, "cpu"),
        paths,
        recipe,
        until=5,
        ending=2,
        keep=1e9,
        seconds=1e9,
    )
    rows = [json.loads(line) for line in (paths.out / "losses.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(5))
    assert load_file(paths.out / "delta.safetensors")
