"""How the reader is trained: what it is fed, and that a run can be broken off."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ragcache_integrations.adaptive import SynthesisPrompts
from ragcache_integrations.core.prompt import Prompt, PromptDocument
from ragcache_integrations.core.rendering import PromptRenderer
from ragcache_integrations.evaluation.datasets.metrics import token_f1
from ragcache_integrations.resources import load_passages, load_questions
from reader.training import (
    batches,
    beginning,
    corpus,
    examples,
    model,
    questions,
    scores,
    sources,
    tokenizer,
    train,
)

SHIPPED = Path(__file__).parents[2] / "reader" / "ragcache_reader" / "model"
SHAPE = model.Shape(
    vocab_size=1024, hidden=32, intermediate=64, layers=2, heads=2, kv_heads=1, head_dim=16
)


@pytest.fixture(scope="module")
def text() -> corpus.Corpus:
    """The bundled sample alone, taken for training text."""
    made = corpus.Corpus()
    by_passage = {question.passage_id: question for question in load_questions()}
    for number, passage in enumerate(load_passages()[:300]):
        asked = by_passage.get(passage.id)
        told = [(asked.text, asked.answers)] if asked else []
        if number % 10 == 0 and asked:
            made.validation += [(corpus.Asked(asked.text, asked.answers, -1), passage.text)]
        else:
            told += [("who was never named", ())] if told else []
            made.add(passage.text, told, passage.title if number % 3 else "")
    made.near = corpus.nearest(made.passages, 4)
    return made


@pytest.fixture(scope="module")
def plan(text: corpus.Corpus, tmp_path_factory: pytest.TempPathFactory) -> batches.Plan:
    folder = tmp_path_factory.mktemp("reader")
    corpus.save(text, folder / "corpus.json.gz")
    tokenizer.build(text.passages, SHAPE.vocab_size).save(str(folder / "tokenizer.json"))
    return batches.Plan(
        folder / "corpus.json.gz", folder / "tokenizer.json", 3, chunks=4, examples=8, tokens=4096
    )


@pytest.fixture(scope="module")
def words(plan: batches.Plan) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(plan.tokenizer))


def test_what_is_reported_is_kept_out(tmp_path: Path) -> None:
    sample = corpus.SAMPLE
    (tmp_path / "nq").mkdir()
    for name in ("passages.jsonl.gz",):
        (tmp_path / "nq" / name).write_bytes((sample / name).read_bytes())
    rows = corpus._lines(sample / "questions.jsonl.gz")
    asked = "\n".join(json.dumps(row) for row in rows)
    (tmp_path / "nq" / "questions.jsonl").write_text(asked)
    gathered = corpus.gather(tmp_path)
    assert len(gathered.reported) == len(rows)
    kept_out = {passage for _, passage in gathered.reported}
    assert not kept_out & set(gathered.passages)
    assert not gathered.asked, "all questions there are reported ones"
    assert len(gathered.passages) == len(load_passages()) - len(kept_out)


def test_sentences_with_many_questions_make_passages(tmp_path: Path) -> None:
    rows = ["#1", "The Nile is long.", "What is long?    The Nile\tNile", "Who sang?  nobody", "#2"]
    rows += ["It rained.", "What did it do?\trained"]
    (tmp_path / "some.tsv").write_text("\n".join(rows))
    gathered = corpus.gather(tmp_path, tmp_path)
    assert " ".join(gathered.passages) == "The Nile is long. It rained."
    asked = [(one.text, one.answers) for one in gathered.asked]
    assert asked == [("What is long?", ("The Nile", "Nile")), ("What did it do?", ("rained",))]


def test_what_shares_words_with_what_is_reported_is_kept_out(tmp_path: Path) -> None:
    row = corpus._lines(corpus.SAMPLE / "questions.jsonl.gz")[0]
    passage = next(one.text for one in load_passages() if one.id == row["passage_id"])
    (tmp_path / "nq").mkdir()
    for name in ("passages.jsonl.gz",):
        (tmp_path / "nq" / name).write_bytes((corpus.SAMPLE / name).read_bytes())
    (tmp_path / "nq" / "questions.jsonl").write_text(json.dumps(row))
    told = [
        ("", f"Said elsewhere: {passage}", "what is elsewhere?", ("passage",)),
        ("", "Nothing of it.", row["question"], ("nothing",)),
        ("Nile", "The Nile is long.", "what is long", ("the nile",)),
    ]
    (tmp_path / "some.json").write_text(json.dumps(sources._squad(told)))
    gathered = corpus.gather(tmp_path, tmp_path)
    assert [one.text for one in gathered.asked] == ["what is long"]
    assert (gathered.titles[-1], gathered.passages[-1]) == ("Nile", "The Nile is long.")
    assert len(gathered.near) == len(gathered.titles) == len(gathered.passages)


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


def test_a_corpus_is_read_as_it_was_written(text: corpus.Corpus, plan: batches.Plan) -> None:
    assert corpus.load(plan.corpus) == text


def test_questions_ask_for_what_stands_there(text: corpus.Corpus) -> None:
    dice = random.Random(1)
    made = [questions.make_question(one, dice) for one in text.passages for _ in range(3)]
    asked = [one for one in made if one is not None]
    assert len(asked) > 0.9 * len(made)
    for passage, one in zip(itertools.chain(*([p] * 3 for p in text.passages)), made, strict=True):
        if one is not None:
            assert one.answer in one.sentence
            assert one.sentence in passage
    told = sum(one.answer.lower() in one.text.lower().split() for one in asked)
    assert told < 0.05 * len(asked), "the answer is not in the question"


def test_examples_have_their_answer_in_a_document(text: corpus.Corpus) -> None:
    drawn = list(itertools.islice(examples.Examples(text).draw("1"), 400))
    assert drawn == list(itertools.islice(examples.Examples(text).draw("1"), 400))
    assert drawn != list(itertools.islice(examples.Examples(text).draw("2"), 400))
    short = {"yes", "no", examples.NOT_FOUND, *"ABCD"}
    turns, found = 0, []
    for one in drawn:
        documents = " ".join(one.documents).lower()
        for turn in one.turns:
            turns += 1
            if turn.answer not in short and "Summar" not in turn.text:
                found.append(turn.answer.lower() in documents)
    assert len(found) > 500
    assert sum(found) > 0.97 * len(found)
    answers = [turn.answer for one in drawn for turn in one.turns]
    assert sum(answer == examples.NOT_FOUND for answer in answers) > 0.1 * turns
    assert turns > 3 * len(drawn), "documents are read for several questions"


def test_documents_are_such_as_a_search_finds_together(text: corpus.Corpus) -> None:
    mix = examples.Mix((0, 0, 1), near=1.0, titled=1.0, copying=0.0)
    places = {passage: place for place, passage in enumerate(text.passages)}
    drawn = examples.Examples(text)
    for _ in range(50):
        found = drawn._found(3, searched=True)
        assert any(set(found) <= {one, *text.near[one]} for one in found)
        assert len(set(found)) == len(found)
    titled = [drawn._titled(place, passage) for passage, place in places.items()]
    named = [one.split("\n", 1)[0] for one in titled]
    for title, given, passage in zip(named, text.titles, text.passages, strict=True):
        assert title == given or (not given and title in passage)
    assert all(one.endswith(passage) for one, passage in zip(titled, places, strict=True))
    for one in itertools.islice(drawn.draw("5", mix), 50):
        assert sum("\n" in document.strip() for document in one.documents) >= 2


def test_documents_are_asked_as_map_reduce_asks_them(text: corpus.Corpus) -> None:
    prompts = SynthesisPrompts()
    asks = [prompts.summary, prompts.candidate, prompts.reduce]
    mix = examples.Mix(mapped=1.0, copying=0.0, titled=0.5)
    said = {True: 0, False: 0}
    begins = [ask.partition("{words}")[0].partition("{question}")[0] for ask in asks]
    asked = [0, 0, 0]
    for one in itertools.islice(examples.Examples(text).draw("6", mix), 300):
        documents = " ".join(" ".join(one.documents[1:]).lower().split())
        for turn in one.turns:
            (kind,) = (place for place, begin in enumerate(begins) if begin in turn.text)
            found = turn.answer != examples.NOT_FOUND
            said[found] += 1
            asked[kind] += 1
            if not found:
                continue
            answer = turn.answer.lower()
            if kind == 0:
                answer, _, sentence = answer.partition(f"{examples.TELLS} ")
                assert sentence in documents
            assert answer in documents
    assert min(said.values()) > 0.25 * sum(said.values())
    assert min(asked) > 0.1 * sum(asked)


def test_a_prompt_is_the_one_that_the_toolkit_renders(
    words: tokenizers.Tokenizer, tmp_path: Path
) -> None:
    tokenizer.save(words, tmp_path, 4096)
    renderer = PromptRenderer(AutoTokenizer.from_pretrained(tmp_path))
    documents = [passage.text for passage in load_passages()[:3]]
    prompt = Prompt.rag(
        "Question: who\nAnswer:", [PromptDocument(document) for document in documents]
    )
    asked = corpus.Asked("who", ("x",), 0)
    one = batches.encode(words, examples.example_of(asked, documents))
    rendered = renderer.render(prompt).token_ids
    assert one.tokens[: one.said.argmax()].tolist() == rendered
    answer = one.tokens[len(rendered) :].tolist()
    assert words.decode(answer, skip_special_tokens=False) == "x<|end|>"


def test_several_turns_are_the_chat_that_the_toolkit_renders(
    words: tokenizers.Tokenizer, text: corpus.Corpus, tmp_path: Path
) -> None:
    tokenizer.save(words, tmp_path, 4096)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    drawn = (one for one in examples.Examples(text).draw("3") if not one.beside)
    for example in itertools.islice(drawn, 50):
        turns = "".join(f"{turn.text}{turn.answer}{examples.END}" for turn in example.turns)
        whole = "".join(example.documents) + turns
        messages = []
        for part in whole.removeprefix(examples.BEGIN).split(examples.END)[:-1]:
            role, _, content = part.removeprefix("<|").partition("|>")
            messages.append({"role": role, "content": content})
        roles = [message["role"] for message in messages if message["role"] != "system"]
        assert roles == ["user", "assistant"] * len(example.turns)
        assert theirs.apply_chat_template(messages, tokenize=False) == whole


def test_questions_beside_each_other_are_each_as_if_alone(
    words: tokenizers.Tokenizer, text: corpus.Corpus
) -> None:
    reader = model.Reader(SHAPE, seed=5)
    same = np.arange(words.get_vocab_size())
    dice = np.random.default_rng(0)
    drawn = (one for one in examples.Examples(text).draw("4") if one.beside)
    compared = 0
    for example in itertools.islice(drawn, 10):
        one = batches.encode(words, example)
        room = batches.Room((one.documents + 63) // 64 * 64, 16, 48)
        batch = batches._padded([one], room, dice, same, [same[:0]])
        tokens, turns = (
            torch.from_numpy(batch.tokens.astype("int64")),
            torch.from_numpy(batch.turns),
        )
        beside = model.Beside(batch.documents, batch.block, turns[:, : batch.documents] != 0)
        with torch.no_grad():
            hidden, _ = reader.read(tokens, torch.from_numpy(batch.places.astype("int64")), beside)
        places = one.laid_out(room.documents, room.block, room.questions)
        for number, turn in enumerate(example.turns, 1):
            alone = batches.encode(words, examples.Example(example.documents, (turn,)))
            there = places[one.turns == number]
            if (there < 0).any():
                assert (there < 0).all()
                assert len(there) > room.block or number > room.questions
                continue
            with torch.no_grad():
                expected = reader(torch.from_numpy(alone.tokens)[None])[0, one.documents :]
            assert torch.allclose(hidden[0, there], expected, atol=1e-5)
            assert alone.tokens[one.documents :].tolist() == batch.tokens[0, there].tolist()
            assert alone.said[one.documents :].tolist() == batch.said[0, there].tolist()
            compared += 1
    assert compared > 50


def test_pointers_go_to_where_answers_stand(
    plan: batches.Plan, words: tokenizers.Tokenizer
) -> None:
    twins = {spaced: bare for bare, spaced in tokenizer.twins(words)}
    told = [0, 0]
    for batch in itertools.chain(*batches.chunks(plan, 0, 1)):
        for _, row, at, to, step in batch.pointers.tolist():
            assert batch.said[row, at + 1]
            assert batch.said[row, at] == (step > 0)
            assert batch.turns[row, to] == 0
            if to:
                first, there = (int(batch.tokens[row, one]) for one in (at + 1, to))
                assert twins.get(first, first) == twins.get(there, there)
                told[step > 0] += 1
            else:
                rest = batch.tokens[row, at + 1 : at + 30].tolist()
                assert words.decode(rest).startswith(examples.NOT_FOUND.lower())
    assert min(told) > 50


def test_of_a_summary_only_the_answer_is_pointed_at(words: tokenizers.Tokenizer) -> None:
    said = f"at 10:30{examples.TELLS} It began at 10:30, or so: late."
    turn = examples.Turn("\nSummary:", said)
    one = batches.encode(words, examples.Example(("It began at 10:30, or so: late.",), (turn,)))
    same = np.arange(words.get_vocab_size())
    for bare, spaced in tokenizer.twins(words):
        same[spaced] = bare
    texts = (examples.NOT_FOUND, "yes", examples.TELLS)
    special = [same[words.encode(text).ids] for text in texts]
    ((begin, length, places),) = batches.pointers(same[one.tokens], one, special)
    assert begin == int(one.said.argmax())
    assert words.decode(one.tokens[begin : begin + length].tolist()) == "at 10:30"
    (place,) = places
    assert same[one.tokens[place]] == same[one.tokens[begin]]


def test_to_look_where_answers_stand_is_what_is_taught() -> None:
    """Two documents' tokens, and a question each at the positions behind them."""
    turns = torch.tensor([[0, 0, 0, 0, 1, 1, 2, 2]])
    #            number, row, from, to, step
    pointers = torch.tensor([[0, 0, 5, 1, 0], [0, 0, 5, 3, 0], [1, 0, 6, 2, 0], [2, 0, 7, 3, 1]])

    def loss(*looked_at: tuple[int, int]) -> float:
        """That of one exact head, beside one that looks everywhere alike."""
        looks = torch.zeros(1, 8, 8)
        for at, to in looked_at:
            looks[0, at, to] = 100.0
        everywhere = torch.zeros(1, 8, 8), torch.eye(8)[None]
        return float(train._pointed([everywhere, (looks, torch.eye(8)[None])], pointers, turns))

    right = loss((5, 3), (6, 2), (7, 3))
    assert loss((5, 1), (6, 2), (7, 3)) == pytest.approx(right), "any place where it stands"
    assert right < loss((5, 4), (6, 2), (7, 3)), "not to the question itself"
    missed_next = loss((5, 3), (6, 2))
    assert right < missed_next < loss((5, 3), (7, 3)), "an answer's first token counts most"


def test_a_network_begins_by_copying(words: tokenizers.Tokenizer) -> None:
    shape = model.Shape(vocab_size=1024, hidden=256, intermediate=64, layers=4, heads=4)
    reader = model.Reader(shape, seed=2)
    pairs = tokenizer.twins(words)
    count = words.get_vocab_size()
    assert count <= shape.vocab_size
    beginning.begin(reader, pairs, torch.zeros(count, 8), torch.ones(count), [20], seed=2)
    bare = [one for one, _ in pairs if not 20 <= one < 30]
    text = torch.tensor(random.Random(3).sample(bare, 60))
    with torch.no_grad():
        likeliest = reader.logits(reader(torch.cat((text, text))[None]))[0].argmax(-1)
    right = (likeliest[60:119] == text[1:]).float().mean()
    assert right > 0.25, "what followed the first time often follows again"


def test_heads_that_point_are_made_to_say_what_they_point_at() -> None:
    shape = model.Shape(vocab_size=300, hidden=128, intermediate=64, layers=4, heads=4)
    reader = model.Reader(shape, seed=6)  # embeddings are faint in a network as it is drawn
    dice = torch.Generator().manual_seed(6)
    texts = [torch.randint(0, shape.vocab_size, (50,), generator=dice) for _ in range(20)]
    new = torch.randint(0, shape.vocab_size, (50,), generator=dice)
    group, size = shape.heads // shape.kv_heads, shape.head_dim
    span = slice((shape.kv_heads - 1) * size, shape.kv_heads * size)
    head = slice((shape.heads - group) * size, (shape.heads - group + 1) * size)

    def said() -> list[float]:
        """How often a pointing head that looks at one token alone says it, by layers."""
        shares = []
        with torch.no_grad():
            inputs = beginning._inputs(reader, new)
            for layer in range(shape.layers - shape.pointers, shape.layers):
                attention: Any = reader.model.layers[layer].self_attn
                values = inputs[layer] @ attention.v_proj.weight[span].T
                written = values @ attention.o_proj.weight[:, head].T
                likeliest = reader.logits(reader.model.norm(written)).argmax(-1)
                shares.append(float((likeliest == new).float().mean()))
        return shares

    assert max(said()) < 0.2
    beginning.repair_copying(reader, texts)
    assert min(said()) > 0.8
    length = reader.model.embed_tokens.weight.norm(dim=1)
    assert torch.allclose(length, length[0].expand(shape.vocab_size))


def test_a_word_is_the_same_behind_a_space(words: tokenizers.Tokenizer) -> None:
    pairs = dict(tokenizer.twins(words))
    assert len(pairs) > 400
    for word in {one for passage in load_passages()[:50] for one in passage.text.split()}:
        bare, spaced = words.encode(word).ids, words.encode(f" {word}").ids
        if not word[0].isdigit():
            assert [pairs[bare[0]], *bare[1:]] == spaced, word
    text = "Über 1,234 naïve cafés (of München)."
    assert words.decode(words.encode(text).ids) == text.lower()


def test_transformers_computes_the_same(tmp_path: Path) -> None:
    reader = model.Reader(SHAPE, [(10, 20)], seed=4)
    model.write(reader, tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ours = model.read(tmp_path)
    tokens = torch.randint(0, SHAPE.vocab_size, (2, 40))
    with torch.no_grad():
        drift = (theirs(tokens).logits - ours.logits(ours(tokens))).abs().max()
    assert drift < 1e-5


def test_the_reader_is_small_enough() -> None:
    with torch.device("meta"):
        layers = model._Trunk(model.Shape())
    assert sum(parameter.numel() for parameter in layers.parameters()) <= 20_000_000


def test_chunks_are_the_same_whoever_makes_them(plan: batches.Plan) -> None:
    whole = list(batches.chunks(plan, 0, 2))
    assert len(whole) == plan.chunks
    for first, chunk in zip(whole[2:], batches.chunks(plan, 2, 1), strict=True):
        for one, other in zip(first, chunk, strict=True):
            assert (one.tokens == other.tokens).all()
            assert (one.pointers == other.pointers).all()
            assert (one.foretold == other.foretold).all()
            assert 0 < one.said.sum() < 0.7 * (one.tokens != batches.PAD).sum()
            assert not (one.said | one.foretold)[one.tokens == batches.PAD].any()
            assert not (one.said & one.foretold).any()


@pytest.mark.slow
def test_broken_off_it_goes_on(
    plan: batches.Plan, text: corpus.Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "quality", lambda *_: {})
    whole, parts = tmp_path / "whole", tmp_path / "parts"

    def run(folder: Path, minutes: float) -> bool:
        folder.mkdir(exist_ok=True)
        return train.train(
            plan,
            SHAPE,
            train.Recipe(compiled=False),
            folder,
            minutes=minutes,
            device="cpu",
            processes=1,
        )

    assert run(whole, 10)
    done = [run(parts, 0) for _ in range(plan.chunks)]
    assert done == [False] * (plan.chunks - 1) + [True]
    one, other = (model.read(folder).state_dict() for folder in (whole, parts))
    for name, weight in one.items():
        assert torch.allclose(weight, other[name], atol=1e-6), name
    tokens = torch.arange(20)[None]
    fresh = model.Reader(SHAPE, seed=plan.seed)
    assert not torch.allclose(model.read(whole)(tokens), fresh(tokens), atol=1e-3), "it learnt"


def test_answers_of_several_are_those_of_each() -> None:
    texts = {passage.id: passage.text for passage in load_passages()}
    told = [
        examples.example_of(
            corpus.Asked(question.text, question.answers, 0), [texts[question.passage_id]] * count
        )
        for count, question in enumerate(load_questions()[:5], 1)
    ]
    together = train.answers(SHIPPED, told, "cpu")
    assert together == train.answers(SHIPPED, told, "cpu", together=1)
    assert len(set(together)) > 3


@pytest.mark.parametrize(
    ("said", "right"),
    [("the Nile", ["Nile"]), ("in 1901", ["1901", "x"]), ("", ["a"]), ("a", [""])],
)
def test_scores_are_the_toolkits(said: str, right: list[str]) -> None:
    assert scores.f1(said, right) == token_f1(said, right)


def test_a_reader_that_there_is_is_trained_on(
    plan: batches.Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "quality", lambda *_: {})
    given, out = tmp_path / "given", tmp_path / "out"
    given.mkdir()
    out.mkdir()
    model.write(model.Reader(SHAPE, seed=8), given)
    recipe = train.Recipe(rate=1e-6, compiled=False)
    done = train.train(
        plan, SHAPE, recipe, out, minutes=10, device="cpu", processes=1, begin_with=given, first=3
    )
    assert done
    state = torch.load(out / "checkpoint.pt", weights_only=True)
    assert state["done"] == plan.chunks
    changed = []
    for name, weight in model.read(given).state_dict().items():
        assert torch.allclose(weight, state["reader"][name], atol=1e-3), name
        changed.append(not torch.equal(weight, state["reader"][name]))
    assert any(changed), "one chunk was learnt"
