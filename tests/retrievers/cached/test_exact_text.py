"""``tolerance=0`` compares texts, and no text is answered by one that the model read as alike."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from llama_index.core.base.base_retriever import BaseRetriever as LlamaIndexBase
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from tokenizers import Tokenizer
from tokenizers.models import BPE, Unigram, WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer, ByteLevel

from ragcache_integrations.embeddings.minilm import MiniLM
from ragcache_integrations.langchain import MiniLMEmbeddings
from ragcache_integrations.llama_index import MiniLMEmbeddings as LlamaIndexMiniLM
from ragcache_integrations.retrievers.cached.langchain.retriever import ApproximateCacheRetriever
from ragcache_integrations.retrievers.cached.llama_index.retriever import (
    ApproximateCacheRetriever as LlamaIndexRetriever,
)
from ragcache_integrations.retrievers.keys.text_identity import normalize_text, window_of
from tests.retrievers.cached.langchain.stores import Words, in_memory_store
from tests.retrievers.cached.llama_index.indexes import Words as LlamaIndexWords
from tests.support.sizes import examples

LONG = "dear all, " + "this is a long story " * 80
PAIRS = [
    ("what does 🍎 mean", "what does 🍌 mean"),
    ("can US citizens vote", "can us citizens vote"),
    ("what is a résumé", "what is a resume"),
    ("who  is he", "who is he"),
    ("who is he", "who is he "),
    ("ﬁne", "fine"),
    (LONG + "invoice 17?", LONG + "invoice 99?"),
]


def lexical() -> Any:
    """What reads the text: BM25, a search on the web, a model that writes the query."""
    return RunnableLambda(lambda query: [Document(f"found for: {query}")])


class Blind(Words):
    """Takes all texts for the same."""

    def embed_query(self, text: str) -> list[float]:
        return super().embed_query("")


class LlamaIndexBlind(LlamaIndexWords):
    def _get_query_embedding(self, query: str) -> list[float]:
        return super()._get_query_embedding("")


MODEL = MiniLMEmbeddings()


class ReadsText(LlamaIndexBase):
    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [NodeWithScore(node=TextNode(text=f"found for: {query_bundle.query_str}"))]


@pytest.mark.parametrize(("first", "second"), PAIRS)
class TestWhatTheModelReadsAlike:
    async def test_langchain(self, first: str, second: str) -> None:
        retriever = ApproximateCacheRetriever.from_retriever(lexical(), MODEL, tolerance=0)
        for text in (first, second, first, second):
            assert retriever.invoke(text) == [Document(f"found for: {text}")]
            assert await retriever.ainvoke(text) == [Document(f"found for: {text}")]
        assert (retriever.stats().misses, retriever.stats().hits) == (2, 6)

    async def test_llama_index(self, first: str, second: str) -> None:
        retriever = LlamaIndexRetriever.from_retriever(ReadsText(), LlamaIndexMiniLM(), tolerance=0)
        for text in (first, second, first, second):
            assert retriever.retrieve(text)[0].text == f"found for: {text}"
            assert (await retriever.aretrieve(text))[0].text == f"found for: {text}"
        assert (retriever.stats().misses, retriever.stats().hits) == (2, 6)


@examples(200)
@given(st.lists(st.text(min_size=1).filter(str.strip), min_size=1, max_size=12))
def test_every_text_is_its_own_question(texts: list[str]) -> None:
    retriever = ApproximateCacheRetriever.from_retriever(lexical(), Blind(), tolerance=0)
    for text in texts + texts:
        assert retriever.invoke(text)[0].page_content == f"found for: {text}"
    assert retriever.stats().misses == len(set(texts))


@examples(200)
@given(st.lists(st.text(min_size=1).filter(str.strip), min_size=1, max_size=12))
def test_every_text_is_its_own_question_in_llama_index(texts: list[str]) -> None:
    retriever = LlamaIndexRetriever.from_retriever(ReadsText(), LlamaIndexBlind(), tolerance=0)
    for text in texts + texts:
        assert retriever.retrieve(text)[0].text == f"found for: {text}"
    assert retriever.stats().misses == len(set(texts))


def test_a_bundle_with_other_texts_to_embed() -> None:
    retriever = LlamaIndexRetriever.from_retriever(ReadsText(), LlamaIndexMiniLM(), tolerance=0)
    for text in ("first", "second", "first"):
        bundle = QueryBundle(text, custom_embedding_strs=["the same"])
        assert retriever.retrieve(bundle)[0].text == f"found for: {text}"
        bundle = QueryBundle(text, embedding=[0.1] * 384)
        assert retriever.retrieve(bundle)[0].text == f"found for: {text}"


class TestTheWindow:
    def test_texts_that_the_model_cut_off_share_no_entry(self) -> None:
        first, second = PAIRS[-1]
        retriever = ApproximateCacheRetriever.from_retriever(
            lexical(), MODEL, tolerance=0.3, guard=False
        )
        for text in (first, second, first, second):
            assert retriever.invoke(text) == [Document(f"found for: {text}")]
        assert retriever.stats().hits == 2
        assert retriever.invoke("can US citizens vote")
        assert retriever.invoke("can us citizens vote")
        assert retriever.stats().hits == 3  # short ones do, as ever

    @pytest.mark.parametrize("make", [MiniLMEmbeddings, LlamaIndexMiniLM, MiniLM])
    def test_it_is_found_in_every_class(self, make: Any) -> None:
        model = make()
        is_cut = window_of(model)
        embed = {MiniLMEmbeddings: "embed_query", MiniLM: "embed"}
        getattr(model, embed.get(make, "get_query_embedding"))("a")
        assert is_cut(LONG)
        assert is_cut("é " * 300)
        assert not is_cut("what is a résumé")
        assert not is_cut("word " * 100)

    def test_other_models_are_believed(self) -> None:
        assert not window_of(Words())(LONG)
        assert not window_of(None)(LONG)

    def test_a_tokenizer_without_a_fast_backend(self) -> None:
        class Slow:
            max_seq_length = 100
            tokenizer = object()

        Slow.__module__ = "sentence_transformers.own"
        assert window_of(Slow())("x" * 101)
        assert not window_of(Slow())("x" * 50)


UNREAD = [
    (
        "入门版多少钱",
        "专业版多少钱",
        "begins with CJK UNIFIED",
    ),
    ("左足が痛い", "右足が痛い", "begins with CJK UNIFIED"),
    ("환불이 가능합니까?", "환불이 불가능합니까?", "begins with HANGUL"),
    ("ร้านเปิดกี่โมง", "ร้านปิดกี่โมง", "begins with THAI CHARACTER RO RUA"),
    ("как включить звук", "как выключить звук", "begin with CYRILLIC SMALL LETTER KA"),
    ("क्या दुकान खुली है", "क्या दुकान बंद है", "begin with DEVANAGARI LETTER KA"),
    ("Làm thế nào để mở tài khoản", "Làm thế nào để đóng tài khoản", "the accents of most words"),
    ("what does 🍎 mean", "what does 🍌 mean", "begins with RED APPLE"),
]


@pytest.mark.parametrize(("first", "second", "cause"), UNREAD)
class TestScriptsThatTheModelCannotRead:
    """Only the same text shares an entry, and one warning says why."""

    async def test_langchain(
        self, first: str, second: str, cause: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        retriever = ApproximateCacheRetriever.from_retriever(lexical(), MODEL, tolerance=0.5)
        for text in (first, second, first, second):
            assert retriever.invoke(text) == [Document(f"found for: {text}")]
            assert await retriever.ainvoke(text) == [Document(f"found for: {text}")]
        assert (retriever.stats().misses, retriever.stats().hits) == (2, 6)
        (warning,) = [text for text in caplog.messages if "cannot read" in text]
        assert cause in warning
        assert "multilingual" in warning
        assert first not in warning  # which is nobody else's business

    async def test_llama_index(self, first: str, second: str, cause: str) -> None:
        retriever = LlamaIndexRetriever.from_retriever(
            ReadsText(), LlamaIndexMiniLM(), tolerance=0.5
        )
        for text in (first, second, first, second):
            assert retriever.retrieve(text)[0].text == f"found for: {text}"
            assert (await retriever.aretrieve(text))[0].text == f"found for: {text}"
        assert (retriever.stats().misses, retriever.stats().hits) == (2, 6)


def sentence_transformer(tokenizer: Any) -> Any:
    """What has a tokenizer as the models of sentence-transformers have theirs."""

    class Own:
        max_seq_length = 512

    Own.__module__ = "sentence_transformers.own"
    model: Any = Own()
    model.tokenizer = SimpleNamespace(backend_tokenizer=tokenizer)
    return model


class TestTokenizersOfOthers:
    def test_a_vocabulary_that_has_the_script_reads_it(self) -> None:
        words = ["[UNK]", *"入门专业版多少钱", "включить", "как", "звук"]
        tokenizer = Tokenizer(
            WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]")
        )
        tokenizer.normalizer = BertNormalizer(lowercase=False)
        tokenizer.pre_tokenizer = BertPreTokenizer()
        leaves_out = window_of(sentence_transformer(tokenizer))
        assert not leaves_out("入门版多少钱")
        assert not leaves_out("как включить звук")
        assert leaves_out("как выключить звук")

    def test_pieces_with_a_number_for_what_is_unknown(self) -> None:
        pieces = [("<unk>", 0.0), ("a", -1.0), ("b", -1.0)]
        known = window_of(sentence_transformer(Tokenizer(Unigram(pieces, unk_id=0))))
        assert not known("ab")
        assert known("abc")

    def test_a_model_that_keeps_its_tokenizer(self) -> None:
        tokenizer = Tokenizer(Unigram([("<unk>", 0.0), ("a", -1.0)], unk_id=0))
        tokenizer.enable_truncation(100)
        model = SimpleNamespace(model=SimpleNamespace(model=SimpleNamespace(tokenizer=tokenizer)))
        leaves_out = window_of(model)
        assert not leaves_out("a" * 60)
        assert leaves_out("a" * 80)
        assert leaves_out("ab")
        assert not window_of(SimpleNamespace(tokenizer="a name"))("ab")

    def test_bytes_are_read(self) -> None:
        tokenizer = Tokenizer(BPE({c: n for n, c in enumerate(sorted(ByteLevel.alphabet()))}, []))
        tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
        leaves_out = window_of(sentence_transformer(tokenizer))
        for first, second, _ in UNREAD:
            assert not leaves_out(first)
            assert not leaves_out(second)
        assert leaves_out("a" * 600)


class TestNormalizedText:
    @pytest.mark.parametrize(
        ("text", "normalized"),
        [
            ("  Who is\u00a0 he?\t", "who is he"),
            ("all:\techo  a", "all:\techo  a"),
            ("Who IS he", "who IS he"),
            ("WHO is he", "WHO is he"),
            ("What's new?", "what's new"),
            ("what\u2019s new", "what's new"),
            ("Who", "Who"),
            ("ﬁne", "ﬁne"),
            ("Straße", "Straße"),
            ("e\u0301", "é"),
            ("🍎", "🍎"),
            ("¿Qué hora es?", "qué hora es"),
            ("入门版多少钱？", "入门版多少钱"),
            ("Tell me about Rome.", "tell me about Rome"),
            ("explain ls a?", "explain ls a?"),
            ("what is Co.", "what is Co."),
            ("what is ??", "what is ??"),
            ("git add .", "git add ."),
            ("print(\u201ca  b\u201d)", "print(\u201ca  b\u201d)"),
            ("a:\r\n  b", "a:\n  b"),
        ],
    )
    def test_what_is_folded(self, text: str, normalized: str) -> None:
        assert normalize_text(text) == normalized

    @given(st.text())
    def test_it_is_stable(self, text: str) -> None:
        once = normalize_text(text)
        assert normalize_text(once) == once

    def test_the_knob(self) -> None:
        store = in_memory_store()
        retriever = ApproximateCacheRetriever.from_vectorstore(
            store, tolerance=0, normalize_text=True
        )
        assert retriever.invoke("Who is  he?") == retriever.invoke("who is he ")
        assert retriever.stats().hits == 1
        assert retriever.invoke("\u200b")  # folded away, and a question nevertheless
