from importlib.resources import files

from ragcache_integrations.resources import load_passages, load_questions


def test_sizes() -> None:
    assert len(load_questions()) == 300
    assert len(load_passages()) >= 300 + 700


def test_no_passage_is_there_twice() -> None:
    passages = load_passages()
    assert len({passage.id for passage in passages}) == len(passages)
    assert len({passage.text.casefold() for passage in passages}) == len(passages)


def test_no_question_is_there_twice() -> None:
    questions = load_questions()
    assert len({question.text.casefold() for question in questions}) == len(questions)
    assert len({question.passage_id for question in questions}) == len(questions)


def test_every_gold_passage_holds_an_answer() -> None:
    texts = {passage.id: passage.text for passage in load_passages()}
    for question in load_questions():
        text = " ".join(texts[question.passage_id].split())
        assert question.answers
        assert any(" ".join(answer.split()) in text for answer in question.answers), question


def test_texts_are_clean() -> None:
    for passage in load_passages():
        assert passage.id
        assert passage.title
        for text in (passage.title, passage.text):
            assert text == " ".join(text.split())
            text.encode()


def test_the_attribution_stands_beside_the_sample() -> None:
    attribution = files("ragcache_integrations.resources").joinpath("data", "ATTRIBUTION.md")
    text = attribution.read_text(encoding="utf-8")
    for name in ("CC BY-SA 3.0", "Wikipedia", "Natural Questions", "lost-in-the-middle"):
        assert name in text
